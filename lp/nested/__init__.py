"""Methods around another one: which texts are wanted is theirs, and the method inside speeds them up. Their settings
alone are here, which know nothing of models or requests.
"""
