"""Checks of this machine and this installation, for `localdflash doctor`."""
