"""Generated stand-ins: rows of the published format for every task, at any length, without a download.

They are not SCBench's contexts and are never called so. kv, prefix_suffix, vt, the pass keys and the keys among code
are worded as RULER words its needles and chains, many_shot as a list "input: label", because the lab models were
trained on those; the other tasks ask in SCBench's own form about generated facts, numbers and library functions.
"""
