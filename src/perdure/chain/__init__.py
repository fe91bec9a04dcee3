"""Names at the paths the checkpointing reference gives them. Thin: nothing is decided here."""
