"""The methods under test, in three families (WG-KV §2.2): admission before the write, selection at read time, eviction
after the write. One file a method; a file put into a family's folder is found by its ``name``. An arm of an evaluation
combines at most one of each."""
