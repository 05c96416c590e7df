"""What a trainer records of sampler and trainer, and the files of other frameworks."""
