"""One module per revision, named r<number>_<what>; each is listed in `ncclt.store.schema`."""
