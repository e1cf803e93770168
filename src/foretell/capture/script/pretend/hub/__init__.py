"""Models, tokenizers and processors of the Hugging Face hub by name, built from configurations that are known here."""
