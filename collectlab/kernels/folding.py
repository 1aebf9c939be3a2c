"""Pairwise algorithms on any rank count: a power of two of the ranks are members, the others hand in and get out."""


class Fold:
    """Who takes part among `nranks` ranks, so that the members are 2**steps and lie in rank order.

    steps   the largest whole number with 2**steps <= nranks
    The nranks - 2**steps ranks too many are the odd ones among the first: each has its even neighbour as a twin,
    which takes in its vector at the beginning and gives it the result in the end. (MPICH folds likewise.)
    """

    def __init__(self, nranks):
        self.steps = nranks.bit_length() - 1
        self._paired = 2 * (nranks - 2**self.steps)  # so many ranks at the beginning have a twin

    def twin(self, rank):
        """The other rank of its pair; None if it is alone."""
        return rank ^ 1 if rank < self._paired else None

    def member(self, rank):
        """Its number among the members; None for a rank that only hands in and gets out."""
        if rank >= self._paired:
            return rank - self._paired // 2
        return None if rank % 2 else rank // 2

    def rank(self, member):
        """The rank of a member."""
        return member * 2 if member < self._paired // 2 else member + self._paired // 2
