"""GPU code, run on a CPU: tensors that say they are on a CUDA device and compute on the CPU.

Model, cache, sampler and graphs run unchanged, with real numbers. What a GPU would refuse fails here, too: tensors of
two devices in one operation, reading a number while a graph is captured, memory that is gone when a graph is replayed.
Launches and copies are counted. What is not emulated: streams, asynchronous execution, and how a GPU rounds.
"""
