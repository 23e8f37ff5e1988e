"""`model.generate(..., custom_generate=lp.generate)`: decoding for a model that the caller of transformers holds."""
