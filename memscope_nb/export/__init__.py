"""Files that people keep and send: pages, their index."""
