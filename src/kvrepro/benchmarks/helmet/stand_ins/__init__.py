"""Generated stand-ins: rows of the published formats for every category, at any length, without a download.

They are not HELMET's contexts and are never called so. Passages, stories and cases tell of generated people and towns;
texts to be labelled share a made-up phrase with the demonstrations of their class, since no lab model knows what a text
is about.
"""
