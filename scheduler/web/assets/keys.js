// Keys of pages that have steps or a queue.
