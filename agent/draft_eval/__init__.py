"""How well drafts guess what a recorded model said."""
