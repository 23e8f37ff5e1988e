"""What only a GPU needs: operators that torch or other packages have for it.

This package knows nothing of models, trees or caches.
"""
