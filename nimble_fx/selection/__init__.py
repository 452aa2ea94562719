"""Which schedule a program gets: the candidates, what they are predicted to take, and the choice.

In: a traced graph and the user's options. Out: one schedule or several to be timed, each proved
legal and emitted. It imports the pipeline of passes, costs, simulation, verifier and code
generator.
"""
