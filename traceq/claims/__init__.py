"""Claims: what a step would gain, why, and how sure that is, as data, and the rules and sentences of all of them."""
