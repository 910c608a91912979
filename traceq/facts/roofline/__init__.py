"""FLOPs and bytes of ops from their recorded inputs, and the peaks of accelerators: what a roofline is made of."""
