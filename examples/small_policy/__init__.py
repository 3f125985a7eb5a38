"""What the example policies are made with: a tokenizer for closed texts, a small Qwen2 model, imitation of traces."""
