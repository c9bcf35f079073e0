package config

import (
	"fmt"
	"strconv"
	"time"
)

// Hosts says when a host counts as unreachable and how often it is asked what
// it has.
type Hosts struct {
	UnreachableLooks int
	UnreachableAfter time.Duration
	ProbeInterval    time.Duration // 0: never again
}

// DeadLetters says how long dead letters are kept.
type DeadLetters struct {
	Retention time.Duration // 0: for ever
	Keep      int           // 0: all
}

var hostSettings = []setting{
	{flag: "host-unreachable-looks", env: "ORCH_HOST_UNREACHABLE_LOOKS", def: "3", kind: kindNumber, usage: "looks in a row that must miss a host before it counts as unreachable",
		set: number(1, 1000, func(s *Server, n int) { s.Hosts.UnreachableLooks = n })},
	{flag: "host-unreachable-after", env: "ORCH_HOST_UNREACHABLE_AFTER", def: "1m30s", kind: kindDuration, usage: "silence after which one missed look is enough for that",
		set: duration(func(s *Server) *time.Duration { return &s.Hosts.UnreachableAfter })},
	{flag: "host-probe-interval", env: "ORCH_HOST_PROBE_INTERVAL", def: "1h0m0s", kind: kindDuration, usage: "how often a host is asked for its capacity again; 0: only when it comes back",
		set: orOff(time.Minute, func(s *Server, d time.Duration) { s.Hosts.ProbeInterval = d })},
	{flag: "dead-letter-retention", env: "ORCH_DEAD_LETTER_RETENTION", def: "2160h0m0s", kind: kindDuration, usage: "how long dead letters are kept that are not seen again; 0: for ever",
		set: orOff(time.Hour, func(s *Server, d time.Duration) { s.DeadLetters.Retention = d })},
	{flag: "dead-letter-keep", env: "ORCH_DEAD_LETTER_KEEP", def: "10000", kind: kindNumber, usage: "most dead letters that are kept, the longest unseen go; 0: all",
		set: number(0, maxDeadLetters, func(s *Server, n int) { s.DeadLetters.Keep = n })},
}

// maxDeadLetters bounds the number of dead letters that may be asked for: they
// are held in memory.
const maxDeadLetters = 1_000_000

func number(least, most int, assign func(*Server, int)) func(*Server, string) error {
	return func(s *Server, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("%q is not within %d to %d", v, least, most)
		}
		assign(s, n)
		return nil
	}
}

// orOff is a duration of at least least, or 0.
func orOff(least time.Duration, assign func(*Server, time.Duration)) func(*Server, string) error {
	return func(s *Server, v string) error {
		d, err := time.ParseDuration(v)
		switch {
		case err != nil:
			return fmt.Errorf("%q is no duration such as 90s or 2m", v)
		case d != 0 && d < least:
			return fmt.Errorf("%s is less than %s; 0 turns it off", d, least)
		}
		assign(s, d)
		return nil
	}
}
