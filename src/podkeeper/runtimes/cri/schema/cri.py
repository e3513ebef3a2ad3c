"""CRI's messages and enums, by the names in `cri.proto`."""

from podkeeper.runtimes.cri.schema.loading import names_of

globals().update(names_of("cri.proto"))
