"""KV caches: per-head ragged layers, forks of one prefill into compacted children, admission before the write."""
