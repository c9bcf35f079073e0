package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/hostd/ports"
)

// portFlags say at which ports and address a host publishes those of guests.
type portFlags struct{ numbers, address string }

func (f *portFlags) register(s *pflag.FlagSet) {
	s.StringVar(&f.numbers, "port-range", ports.DefaultRange.String(), "`ports` of this machine, FIRST-LAST, at which those of guests are published")
	s.StringVar(&f.address, "port-address", "", "`address` or name by which users reach published ports (default: that of the URL which the server uses)")
}

// span is the range; check has refused what is none. Empty is the default.
func (f portFlags) span() ports.Range {
	r, err := ports.ParseRange(f.numbers)
	if err != nil {
		return ports.DefaultRange
	}
	return r
}

func (f portFlags) check() error {
	if f.numbers != "" {
		if _, err := ports.ParseRange(f.numbers); err != nil {
			return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--port-range: %w", err)}
		}
	}
	if a, err := netip.ParseAddr(f.address); err == nil && a.IsUnspecified() || strings.ContainsAny(f.address, "/ @") {
		return &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("--port-address %q is not an address or name of this machine; give it without scheme and port", f.address)}
	}
	return nil
}
