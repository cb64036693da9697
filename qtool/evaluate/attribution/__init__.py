"""Which quantized operator the noise at the outputs comes from, why, and what to type next."""
