"""Networks of the kinds that are predicted worst, hand-written: what is learnt from, and beside it `blind` ones."""
