"""What a person sees: the live line and curves."""
