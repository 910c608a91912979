"""What if: how long a step would be under changes that were not made, over all ranks."""
