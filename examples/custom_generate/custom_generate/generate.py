import lp  # pip install lookahead-parallel


def generate(model, inputs=None, **arguments):
    return model.generate(inputs, custom_generate=lp.generate, **arguments)
