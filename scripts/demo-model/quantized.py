"""Weights as MatMulNBits with four bits and blocks of 32 has them."""
import torch

BLOCK = 32


def rounded(weight):
    """Returns the weights that int4 gives back: in each block, the largest one (by its absolute value) becomes -8 times the scale."""
    blocks = weight.reshape(-1, BLOCK)
    largest = blocks.gather(1, blocks.abs().argmax(1, keepdim=True))
    scale = largest / -8
    whole = torch.where(scale == 0, 0, (blocks / scale).round().clamp(-8, 7))
    return (whole * scale).view_as(weight)
