"""Messages and enums of CRI, with the names of `cri.proto`."""

from podkeeper.runtimes.cri.schema.loading import names_of

globals().update(names_of("cri.proto"))
