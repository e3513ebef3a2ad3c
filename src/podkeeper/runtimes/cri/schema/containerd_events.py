"""Messages of containerd's event stream (`containerd_events.proto`)."""

from podkeeper.runtimes.cri.schema.loading import names_of

globals().update(names_of("containerd_events.proto"))
