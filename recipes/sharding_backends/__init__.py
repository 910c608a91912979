"""DDP, FSDP and ZeRO behind one interface, with checks of what they wrap and exchange."""
