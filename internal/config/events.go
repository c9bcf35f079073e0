package config

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

// Events says how long events are kept and where they may be sent.
type Events struct {
	Retention           time.Duration // 0: for ever
	Keep                uint64        // 0: all
	WebhookAllowPrivate bool
}

// maxEventKeep bounds the number of events that may be asked for.
const maxEventKeep = 1_000_000_000

var eventSettings = []setting{
	{flag: "event-retention", env: "ORCH_EVENT_RETENTION", def: "720h0m0s", kind: kindDuration, usage: "how long events are kept, a day at least; 0: for ever", set: eventRetention},
	{flag: "event-keep", env: "ORCH_EVENT_KEEP", def: "1000000", kind: kindNumber, usage: "most events that are kept, those of the last day aside; 0: all", set: eventKeep},
	{flag: "webhook-allow-private", env: "ORCH_WEBHOOK_ALLOW_PRIVATE", kind: kindBool, usage: "let webhooks go to addresses that are not on the internet, and without TLS",
		set: boolean(func(s *Server, v *bool) { s.Events.WebhookAllowPrivate = v != nil && *v })},
}

// eventRetention refuses less than what an ended life is explained by.
func eventRetention(s *Server, v string) error {
	d, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("%q is no duration such as 720h", v)
	}
	if d != 0 && d < fleet.LifeRetention {
		return errors.New("is less than 24h; 0 keeps events for ever")
	}
	s.Events.Retention = d
	return nil
}

func eventKeep(s *Server, v string) error {
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil || n > maxEventKeep {
		return fmt.Errorf("%q is not within 0 to %d; 0 keeps all", v, maxEventKeep)
	}
	s.Events.Keep = n
	return nil
}
