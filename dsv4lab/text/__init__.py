"""Text: tokenizer, prompt encoding and its inverse, text that grows with its tokens. Runs without torch."""
