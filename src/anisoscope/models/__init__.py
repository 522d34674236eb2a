"""Load any model, find its blocks, and the ports of architectures that common libraries lack."""
