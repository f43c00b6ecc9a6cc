"""Reading in Chinese: a book of generated facts about people and towns, and questions about them."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvrepro.benchmarks.ruler.draws import draw
from kvrepro.benchmarks.ruler.problem import growing
from kvrepro.benchmarks.scbench.stand_ins.draft import TURNS, Draft, Request

SURNAMES = "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧"
GIVEN = "安宁志远文清书瑶明哲雨晴子轩思源嘉禾天佑若兰景行怀瑾望舒承宇"
PLACES = "青石云溪临江清河南坪北桥东山西湖龙泉白沙金水玉田长宁平安新丰古城"
ENDINGS = ("镇", "县", "村", "城")
TRADES = (
    "木匠",
    "画家",
    "教师",
    "农民",
    "医生",
    "律师",
    "水手",
    "面包师",
    "织工",
    "矿工",
    "歌手",
    "裁缝",
    "化学家",
    "工程师",
)
GOODS = (
    "丝绸",
    "茶叶",
    "瓷器",
    "蜂蜜",
    "羊毛",
    "玻璃",
    "纸张",
    "食盐",
    "木材",
    "铁器",
    "陶器",
    "大麦",
    "铜器",
    "亚麻布",
    "肥皂",
    "皮革",
)
ANIMALS = ("骏马", "猎鹰", "乌龟", "狐狸", "兔子", "山羊", "水獭", "蜥蜴", "鹦鹉", "猎犬")


@dataclass(frozen=True)
class Facts:
    """A paragraph about one person and town, and the questions it answers, each with its answer."""

    text: str
    queries: tuple[tuple[str, str], ...]


def made_up(rng: random.Random, split: str | None, taken: set[str]) -> Facts:
    """Facts about a person and a town not in ``taken``."""
    person = draw(lambda: rng.choice(SURNAMES) + "".join(rng.choices(GIVEN, k=2)), split, taken, "Chinese person")
    town = draw(lambda: "".join(rng.choices(PLACES, k=3)) + rng.choice(ENDINGS), split, taken, "Chinese town")
    trade, good, animal, year = rng.choice(TRADES), rng.choice(GOODS), rng.choice(ANIMALS), rng.randint(1100, 1690)
    text = f"{person}出生在{town}。{person}的职业是{trade}，家中养了一只{animal}。{town}以{good}闻名，建于{year}年。"
    return Facts(
        text,
        (
            (f"{person}出生在哪里？", town),
            (f"{person}的职业是什么？", trade),
            (f"{person}养了什么动物？", animal),
            (f"{town}以什么闻名？", good),
            (f"{person}出生的地方以什么闻名？", good),
            (f"{town}建于哪一年？", f"{year}年"),
        ),
    )


def qa_chn(request: Request) -> Draft:
    """A book of facts in Chinese; one question about each of the first five people or their towns."""
    rng, taken = request.rng("facts"), set()
    made = growing(lambda: made_up(rng, request.split, taken))
    pick = request.rng("queries")
    asked = [pick.choice(one.queries) for one in made(TURNS)]

    def row(n: int) -> dict:
        paragraphs = [one.text for one in made(n)]
        request.rng("order").shuffle(paragraphs)
        return {
            "context": "\n".join(paragraphs),
            "multi_turns": [{"input": question, "answer": answer} for question, answer in asked],
        }

    return Draft(row, smallest=TURNS)
