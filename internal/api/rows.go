package api

import (
	"sync"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
)

// row renders rows one after another in the same memory, so that a page of
// them makes no garbage. What it returns is good until the next one.
type row struct {
	env       gen.Environment
	boot      gen.Boot
	placement gen.Placement
	reason    gen.Reason
	verdict   gen.Verdict

	health func(*fleet.VM) (fleet.HealthStatus, bool) // nil: nothing is known
	sight  func(hostID string) hosts.Sighting         // what is known of hosts; nil: nothing is told of them
}

// of is a row as the wire shows it.
func (r *row) of(vm *fleet.VM) *gen.Environment {
	endpoints, steps := r.env.Endpoints[:0], r.boot.Steps[:0]
	r.env = gen.Environment{
		ID: vm.ID, UID: vm.UID, State: string(vm.State), TaskID: vm.TaskID, Owner: vm.Owner, HostID: vm.HostID,
		URL: vm.URL, Spec: specOf(&vm.Spec), Error: vm.LastError, ImageDigest: vm.ImageDigest, DrainResult: vm.DrainResult,
		CreatedAt: vm.CreatedAt.UTC(), UpdatedAt: vm.UpdatedAt.UTC(),
	}
	if vm.End != nil {
		r.reason = reasonOf(*vm.End)
		r.env.Reason = &r.reason
	}
	for _, e := range vm.Endpoints {
		endpoints = append(endpoints, gen.Endpoint{As: e.As, URL: e.URL, Port: e.Port, Protocol: string(e.Protocol)})
	}
	r.env.Endpoints = endpoints
	for _, st := range vm.Boot.Steps {
		steps = append(steps, gen.BootStep{Step: st.Step, TookMs: float64(st.Took.Microseconds()) / 1000})
	}
	r.boot = gen.Boot{Mode: string(vm.Boot.Mode), Steps: steps}
	if vm.Boot.Mode != "" || len(steps) > 0 {
		r.env.Boot = &r.boot
	}
	standing(&r.env, vm)
	if p := vm.Placement; p != nil {
		r.placement = gen.Placement{
			HostID: p.HostID, Policy: string(p.Policy), Candidates: p.Candidates, HeadroomCPUs: p.HeadroomCPUs, HeadroomRAMMB: p.HeadroomRam, Tries: p.Tries,
		}
		r.env.Placement = &r.placement
	}
	if vm.Probed && r.health != nil {
		if h, ok := r.health(vm); ok {
			r.verdict = gen.Verdict{State: string(h.State), Since: h.Since.UTC(), Failures: h.Failures, Message: h.Message}
			r.env.Health = &r.verdict
		}
	}
	if r.sight != nil && vm.HostID != "" {
		r.host(vm, r.sight(vm.HostID))
	}
	return &r.env
}

// host tells what cannot be known of the VM, because its host is not seen.
func (r *row) host(vm *fleet.VM, seen hosts.Sighting) {
	if seen.Unreachable {
		r.env.HostUnreachableSince, r.env.HostUnreachableReason = seen.MissedSince.UTC(), seen.Reason
	}
	r.env.Unverified = seen.Unverified(vm)
}

// environmentOf is one row by itself.
func environmentOf(vm *fleet.VM) gen.Environment { return *new(row).of(vm) }

// pages holds buffers for pages of a list, which are far too large to be made
// and dropped for each.
var pages = sync.Pool{New: func() any { return new(page) }}

type page struct {
	buf []byte
	row row
}

// keptPage is the largest buffer that is kept, in bytes.
const keptPage = 1 << 20

func (p *page) release() {
	if cap(p.buf) <= keptPage {
		p.buf = p.buf[:0]
		pages.Put(p)
	}
}

// add appends one element of a list.
func (p *page) add(first bool, vm *fleet.VM) {
	if !first {
		p.buf = append(p.buf, ',')
	}
	p.buf = appendEnvironment(p.buf, p.row.of(vm))
}
