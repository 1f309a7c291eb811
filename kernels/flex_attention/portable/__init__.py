"""Flex attention on any GPU that Triton supports, and in its interpreter."""
