package schedule_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/schedule"
)

// host makes an active qemu host of 8 cpus, 16 GB, 100 GB and 10 slots.
func host(id string, edits ...func(*fleet.Host)) *fleet.Host {
	h := &fleet.Host{
		ID: id, State: fleet.HostActive, Backend: fleet.BackendQEMU,
		Capacity: fleet.HostCapacity{CPUs: 8, RamMB: 16384, StorageGB: 100, VMCount: 10},
	}
	for _, edit := range edits {
		edit(h)
	}
	return h
}

func used(cpus, ram int) func(*fleet.Host) {
	return func(h *fleet.Host) {
		h.Allocated = fleet.HostCapacity{CPUs: cpus, RamMB: ram, StorageGB: cpus, VMCount: 1}
	}
}

func labelled(pairs ...string) func(*fleet.Host) {
	return func(h *fleet.Host) {
		h.Labels = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			h.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

func state(s fleet.HostState) func(*fleet.Host) { return func(h *fleet.Host) { h.State = s } }
func region(r string) func(*fleet.Host)         { return func(h *fleet.Host) { h.Region = r } }
func arch(a string) func(*fleet.Host)           { return func(h *fleet.Host) { h.Capacity.Arch = a } }
func backend(b fleet.HostBackend) func(*fleet.Host) {
	return func(h *fleet.Host) { h.Backend = b }
}

func huge(pages int) func(*fleet.Host) { return func(h *fleet.Host) { h.Capacity.HugePages = pages } }
func overcommit(f float64) func(*fleet.Host) {
	return func(h *fleet.Host) { h.Facts.CPUOvercommit = f }
}

var small = fleet.Spec{CPUs: 1, RamMB: 512, StorageGB: 1}

func with(edit func(*fleet.Spec)) fleet.Spec { s := small; edit(&s); return s }

func TestPlacePicks(t *testing.T) {
	for name, tt := range map[string]struct {
		spec    fleet.Spec
		hosts   []*fleet.Host
		policy  fleet.PlacementPolicy
		hints   map[string]bool
		images  map[string]bool
		down    map[string]string
		refused map[string]string
		want    fleet.PlacementDecision
	}{
		"spread takes the emptiest": {
			hosts: []*fleet.Host{host("a", used(4, 4096)), host("b", used(2, 2048)), host("c", used(6, 512))},
			want:  fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 3, HeadroomCPUs: 5, HeadroomRam: 13824},
		},
		"binpack takes the fullest that has room": {
			hosts:  []*fleet.Host{host("a", used(4, 4096)), host("b", used(2, 2048)), host("c", used(8, 512))},
			policy: fleet.PlacementBinpack,
			want:   fleet.PlacementDecision{HostID: "a", Policy: "binpack", Candidates: 2, HeadroomCPUs: 3, HeadroomRam: 11776},
		},
		"one cpu outweighs any memory below 10000 MB": {
			hosts: []*fleet.Host{host("a", used(2, 0)), host("b", used(1, 9999))},
			want:  fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 2, HeadroomCPUs: 6, HeadroomRam: 5873},
		},
		"ties go to the lowest id": {
			hosts: []*fleet.Host{host("c"), host("a"), host("b")},
			want:  fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 3, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"ties go to the lowest id when packing too": {
			hosts: []*fleet.Host{host("c"), host("b")}, policy: fleet.PlacementBinpack,
			want: fleet.PlacementDecision{HostID: "b", Policy: "binpack", Candidates: 2, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"a local artifact outranks the score": {
			hosts: []*fleet.Host{host("a"), host("b", used(7, 0)), host("c", used(6, 0))},
			hints: map[string]bool{"b": true, "c": true},
			want:  fleet.PlacementDecision{HostID: "c", Policy: "spread", Candidates: 3, HeadroomCPUs: 1, HeadroomRam: 15872, ArtifactLocal: true, ArtifactHolders: 2},
		},
		"a local artifact admits nobody": {
			hosts: []*fleet.Host{host("a"), host("b", used(8, 0))},
			hints: map[string]bool{"b": true},
			want:  fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"a host that does not answer is left out": {
			hosts: []*fleet.Host{host("a"), host("b")}, down: map[string]string{"a": "connection refused"},
			want: fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"an empty architecture is amd64 on a host": {
			spec:  with(func(s *fleet.Spec) { s.Arch = "x86_64" }),
			hosts: []*fleet.Host{host("a", arch("aarch64")), host("b")},
			want:  fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"an empty architecture is any on a spec": {
			hosts: []*fleet.Host{host("a", arch("arm64"))},
			want:  fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"all labels have to match": {
			spec:  with(func(s *fleet.Spec) { s.Labels = map[string]string{"disk": "ssd", "zone": "1"} }),
			hosts: []*fleet.Host{host("a", labelled("disk", "ssd")), host("b", labelled("disk", "ssd", "zone", "1", "x", "y"))},
			want:  fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"huge pages take no ordinary memory": {
			spec:  with(func(s *fleet.Spec) { s.HugePages, s.RamMB = true, 1023 }),
			hosts: []*fleet.Host{host("a", used(0, 16384), huge(512)), host("b")},
			want:  fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 1, HeadroomCPUs: 7},
		},
		"cpus are handed out as often as allowed": {
			hosts: []*fleet.Host{host("a", used(8, 0)), host("b", used(11, 0), overcommit(1.5))},
			want:  fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomRam: 15872},
		},
		"an overcommit below 1 is none": {
			hosts: []*fleet.Host{host("a", used(7, 0), overcommit(0.5))},
			want:  fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 1, HeadroomRam: 15872},
		},
		"an image that is there outweighs four cpus": {
			hosts: []*fleet.Host{host("a"), host("b", used(4, 0))}, images: map[string]bool{"b": true},
			want: fleet.PlacementDecision{HostID: "a", Policy: "spread", Candidates: 2, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"an image that is there": {
			hosts: []*fleet.Host{host("a"), host("b", used(3, 0))}, images: map[string]bool{"b": true},
			want: fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 2, HeadroomCPUs: 4, HeadroomRam: 15872, ImageLocal: true},
		},
		"an image that is there when packing": {
			hosts: []*fleet.Host{host("a", used(3, 0)), host("b")}, images: map[string]bool{"b": true}, policy: fleet.PlacementBinpack,
			want: fleet.PlacementDecision{HostID: "b", Policy: "binpack", Candidates: 2, HeadroomCPUs: 7, HeadroomRam: 15872, ImageLocal: true},
		},
		"an artifact outranks an image": {
			hosts: []*fleet.Host{host("a"), host("b")}, images: map[string]bool{"a": true}, hints: map[string]bool{"b": true},
			want: fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 2, HeadroomCPUs: 7, HeadroomRam: 15872, ArtifactLocal: true, ArtifactHolders: 1},
		},
		"a host that refused is left out": {
			hosts: []*fleet.Host{host("a"), host("b")}, refused: map[string]string{"a": "full"},
			want: fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomCPUs: 7, HeadroomRam: 15872},
		},
		"the memory of the process counts": {
			spec: with(func(s *fleet.Spec) { s.RamMB = 16000 }),
			hosts: []*fleet.Host{
				host("a", func(h *fleet.Host) { h.Facts.OverheadMB = 385 }),
				host("b", func(h *fleet.Host) { h.Facts.OverheadMB = 384; used(6, 0)(h) }),
			},
			want: fleet.PlacementDecision{HostID: "b", Policy: "spread", Candidates: 1, HeadroomCPUs: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.spec.CPUs == 0 {
				tt.spec = small
			}
			got, err := schedule.Place(schedule.Input{
				Spec: tt.spec, Hosts: tt.hosts, Policy: tt.policy,
				Hints: fleet.PlacementHints{ArtifactHosts: tt.hints, ImageHosts: tt.images}, Unreachable: tt.down, Refused: tt.refused,
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Decision); diff != "" {
				t.Errorf("decision (-want +got):\n%s", diff)
			}
			if got.Host.ID != got.Decision.HostID {
				t.Errorf("host %s, decision %s", got.Host.ID, got.Decision.HostID)
			}
		})
	}
}

// refusalCase is a placement that nobody takes, and what is said of it.
type refusalCase struct {
	spec    fleet.Spec
	hosts   []*fleet.Host
	down    map[string]string
	refused map[string]string
	is      error
	code    fleet.Code
	want    fleet.Error
}

func TestPlaceRefuses(t *testing.T) {
	for name, tt := range map[string]refusalCase{
		"no hosts": {
			is: fleet.ErrNoHosts,
			want: fleet.Error{Message: "there is no host to run environments on", Details: map[string]string{
				"remedy": "register one with `fuse host register`, or start everything with `fuse dev`",
			}},
		},
		"too large for any host": {
			spec:  with(func(s *fleet.Spec) { s.CPUs = 64 }),
			hosts: []*fleet.Host{host("local", used(2, 0)), host("old", used(5, 0))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 64 cpus: largest free is 6 of 8 on host local", Details: map[string]string{
				"limit": "8 cpus", "usage": "2 cpus", "scope": "host local", "reason": "fit refused 2",
				"remedy": "ask for at most 8, or register a larger host",
			}},
		},
		"too large for what is free now": {
			spec:  with(func(s *fleet.Spec) { s.RamMB = 8192 }),
			hosts: []*fleet.Host{host("a", used(1, 9000), func(h *fleet.Host) { h.Facts.OverheadMB = 90 })},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 8282 MB of memory (90 of it the VM process's own): largest free is 7384 of 16384 on host a", Details: map[string]string{
				"limit": "16384 MB of memory", "usage": "9000 MB of memory", "scope": "host a", "reason": "fit refused 1",
				"remedy": "ask for less, remove an environment of host a, or register another host",
			}},
		},
		"no slot left": {
			hosts: []*fleet.Host{host("a", func(h *fleet.Host) { h.Allocated.VMCount = 10 })},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for another VM: largest free is 0 of 10 on host a", Details: map[string]string{
				"limit": "10 VM slots", "usage": "10 VM slots", "scope": "host a", "reason": "fit refused 1",
				"remedy": "remove an environment of host a, raise its --max-vms, or register another host",
			}},
		},
		"each host lacks something else": {
			spec: with(func(s *fleet.Spec) { s.CPUs, s.RamMB = 4, 4096 }),
			hosts: []*fleet.Host{
				host("a", used(6, 15000)),
				host("b", used(6, 0)),
				host("c", used(0, 15000)),
			},
			is: fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for all that is asked at once; host b comes nearest and lacks room: 4 cpus needed, 2 of 8 free", Details: map[string]string{
				"limit": "8 cpus", "usage": "6 cpus", "scope": "host b", "reason": "fit refused 3",
				"remedy": "ask for less, remove an environment of host b, or register another host",
			}},
		},
		"a host shrunk below its use": {
			hosts: []*fleet.Host{host("a", used(12, 0))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 1 cpus: largest free is 0 of 8 on host a", Details: map[string]string{
				"limit": "8 cpus", "usage": "12 cpus", "scope": "host a", "reason": "fit refused 1",
				"remedy": "ask for less, remove an environment of host a, or register another host",
			}},
		},
		"all out of service": {
			hosts: []*fleet.Host{host("a", state(fleet.HostCordoned)), host("b", state(fleet.HostDraining))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host is in service: host a is cordoned", Details: map[string]string{
				"scope": "host a, b", "reason": "state refused 2",
				"remedy": "return a host to service with `fuse host uncordon`, or register another host",
			}},
		},
		"none answers": {
			hosts: []*fleet.Host{host("a"), host("b", state(fleet.HostCordoned))},
			down:  map[string]string{"a": "connection refused"},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host can be used now: host a cannot be used now: connection refused", Details: map[string]string{
				"scope": "host a", "reason": "state refused 1, reachable refused 1",
				"remedy": "see that the host agent runs, can be reached and accepts this server (`fuse host get`), or register another host",
			}},
		},
		"no such region": {
			spec:  with(func(s *fleet.Spec) { s.Region = "eu" }),
			hosts: []*fleet.Host{host("a", region("us")), host("b")},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host is in region eu: host a is in region us, not eu", Details: map[string]string{
				"scope": "host a, b", "reason": "region refused 2", "limit": "known: us",
				"remedy": "ask for a region that has hosts, or register another host",
			}},
		},
		"labels match nobody": {
			spec:  with(func(s *fleet.Spec) { s.Labels = map[string]string{"zone": "2", "disk": "ssd"} }),
			hosts: []*fleet.Host{host("a", labelled("disk", "hdd")), host("b", labelled("disk", "ssd"))},
			is:    fleet.ErrNoLabelMatch,
			want: fleet.Error{Message: "labels disk=ssd, zone=2 match none of 2 hosts", Details: map[string]string{
				"scope": "host a, b", "reason": "labels refused 2", "limit": "known: disk=hdd, disk=ssd",
				"remedy": "correct placement.labels, or register a host with these labels",
			}},
		},
		"a label key that no host has": {
			spec:  with(func(s *fleet.Spec) { s.Labels = map[string]string{"dsik": "ssd"} }),
			hosts: []*fleet.Host{host("a", labelled("disk", "hdd", "zone", "1"))},
			is:    fleet.ErrNoLabelMatch,
			want: fleet.Error{Message: "labels dsik=ssd match none of 1 hosts", Details: map[string]string{
				"scope": "host a", "reason": "labels refused 1", "limit": "known: disk, zone",
				"remedy": "correct placement.labels, or register a host with these labels",
			}},
		},
	} {
		t.Run(name, tt.run)
	}
}

func TestPlaceRefusesMore(t *testing.T) {
	for name, tt := range map[string]refusalCase{
		"no such architecture": {
			spec:  with(func(s *fleet.Spec) { s.Arch = "aarch64" }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has architecture arm64: host a has architecture amd64, not arm64", Details: map[string]string{
				"scope": "host a", "reason": "arch refused 1", "limit": "known: amd64",
				"remedy": "ask for an architecture that has hosts, or register another host",
			}},
		},
		"too few huge pages": {
			spec:  with(func(s *fleet.Spec) { s.HugePages = true }),
			hosts: []*fleet.Host{host("a", huge(255)), host("b")},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 256 free huge pages: largest free is 255 of 255 on host a", Details: map[string]string{
				"limit": "255 free huge pages", "usage": "0 free huge pages", "scope": "host a", "reason": "fit refused 2",
				"remedy": "ask for at most 255, or register a larger host",
			}},
		},
		"no room beyond the overcommit": {
			spec:  with(func(s *fleet.Spec) { s.CPUs = 13 }),
			hosts: []*fleet.Host{host("a", overcommit(1.5))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 13 cpus: largest free is 12 of 12 on host a", Details: map[string]string{
				"limit": "12 cpus", "usage": "0 cpus", "scope": "host a", "reason": "fit refused 1",
				"remedy": "ask for at most 12, or register a larger host",
			}},
		},
		"all have refused": {
			hosts: []*fleet.Host{host("a"), host("b")}, refused: map[string]string{"a": "no memory left", "b": ""},
			is: fleet.ErrNoCapacity,
			want: fleet.Error{Message: "every host that could take it has refused: host a refused to make it: no memory left", Details: map[string]string{
				"scope": "host a, b", "reason": "asked refused 2",
				"remedy": "ask for less or try again later; if a host keeps refusing, its declared capacity is more than it has, or register another host",
			}},
		},
		"labels match a full host": {
			spec:  with(func(s *fleet.Spec) { s.Labels = map[string]string{"disk": "ssd"} }),
			hosts: []*fleet.Host{host("a"), host("b", labelled("disk", "ssd"), used(8, 0))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host has room for 1 cpus: largest free is 0 of 8 on host b", Details: map[string]string{
				"limit": "8 cpus", "usage": "8 cpus", "scope": "host b", "reason": "labels refused 1, fit refused 1",
				"remedy": "ask for less, remove an environment of host b, or register another host",
			}},
		},
		"gpu without a gpu host": {
			spec:  with(func(s *fleet.Spec) { s.GPUs = 1 }),
			hosts: []*fleet.Host{host("a", backend(""))},
			is:    fleet.ErrNoCapacity,
			want: fleet.Error{Message: "no host serves GPUs: host a has backend firecracker, and only qemu serves GPUs", Details: map[string]string{
				"scope": "host a", "reason": "gpu_backend refused 1",
				"remedy": "register a host with the qemu backend, or register another host",
			}},
		},
		"pinned to a cordoned host": {
			spec:  with(func(s *fleet.Spec) { s.HostID = "a" }),
			hosts: []*fleet.Host{host("a", state(fleet.HostCordoned)), host("b")},
			is:    fleet.ErrHostPinUnschedulable,
			want: fleet.Error{Message: "pinned host a is cordoned (gate state)", Details: map[string]string{
				"host_id": "a", "scope": "host a", "reason": "state",
				"remedy": "return a host to service with `fuse host uncordon`, or leave the pin out",
			}},
		},
		"pinned to a full host": {
			spec:  with(func(s *fleet.Spec) { s.HostID = "a" }),
			hosts: []*fleet.Host{host("a", used(8, 0)), host("b")},
			is:    fleet.ErrHostPinUnschedulable,
			want: fleet.Error{Message: "pinned host a lacks room: 1 cpus needed, 0 of 8 free (gate fit)", Details: map[string]string{
				"host_id": "a", "limit": "8 cpus", "usage": "8 cpus", "scope": "host a", "reason": "fit",
				"remedy": "ask for less, remove an environment of host a, or register another host",
			}},
		},
		"a fork on a full host": {
			spec: with(func(s *fleet.Spec) {
				s.PinnedHostID, s.SeedSnapshotID, s.Ancestors, s.CPUs = "a", "snap-1", []string{"fuse-x"}, 2
			}),
			hosts: []*fleet.Host{host("a", used(7, 0)), host("b")},
			is:    fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "the source's host a is full: 2 cpus needed, 1 of 8 free", Details: map[string]string{
				"host_id": "a", "limit": "8 cpus", "usage": "7 cpus", "scope": "host a", "reason": "fit",
				"remedy": "end or pause an environment of host a, or raise --cpu-overcommit of its agent (now 1), or fork fewer at a time (count)",
			}},
		},
		"a snapshot on a full host": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID, s.SeedSnapshotID = "a", "snap-1" }),
			hosts: []*fleet.Host{host("a", func(h *fleet.Host) { h.Allocated.VMCount = h.Capacity.VMCount }), host("b")},
			is:    fleet.ErrHostPinUnschedulable,
			want: fleet.Error{Message: "host a, which alone has snapshot snap-1, is full: 1 VM slots needed, 0 of 10 free", Details: map[string]string{
				"host_id": "a", "limit": "10 VM slots", "usage": "10 VM slots", "scope": "host a", "reason": "fit",
				"remedy": "end an environment of host a, or raise --max-vms of its agent",
			}},
		},
		"a paused one on a full host": {
			spec: with(func(s *fleet.Spec) { s.PinnedHostID = "a" }),
			hosts: []*fleet.Host{host("a", func(h *fleet.Host) {
				h.Allocated.RamMB, h.Allocated.CPUs, h.Facts.CPUOvercommit = h.Capacity.RamMB, h.Capacity.CPUs*2, 2
			})},
			is: fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "host a, which has the memory of the paused environment, is full: 1 cpus needed, 0 of 16 free; 512 MB of memory needed, 0 of 16384 free", Details: map[string]string{
				"host_id": "a", "limit": "16 cpus", "usage": "16 cpus", "scope": "host a", "reason": "fit",
				"remedy": "end an environment of host a",
			}},
		},
		"a fork on a cordoned host": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID, s.SeedSnapshotID, s.Ancestors = "a", "snap-1", []string{"fuse-x"} }),
			hosts: []*fleet.Host{host("a", state(fleet.HostCordoned)), host("b")},
			is:    fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "the source's host a is cordoned (gate state)", Details: map[string]string{
				"host_id": "a", "scope": "host a", "reason": "state", "remedy": "return a host to service with `fuse host uncordon`",
			}},
		},
		"larger than the snapshot's host": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID, s.SeedSnapshotID, s.CPUs = "a", "snap-1", 9 }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "host a, which alone has snapshot snap-1, is too small: 9 cpus needed, 8 of 8 free", Details: map[string]string{
				"host_id": "a", "limit": "8 cpus", "usage": "0 cpus", "scope": "host a", "reason": "fit",
				"remedy": "ask for at most 8 cpus",
			}},
		},
		"paused on a host that has shrunk": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID, s.CPUs = "a", 9 }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "host a, which has the memory of the paused environment, is too small: 9 cpus needed, 8 of 8 free", Details: map[string]string{
				"host_id": "a", "limit": "8 cpus", "usage": "0 cpus", "scope": "host a", "reason": "fit",
				"remedy": "let host a hand out at least 9 cpus",
			}},
		},
		"the snapshot's host has none of it": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID, s.SeedSnapshotID, s.HugePages = "a", "snap-1", true }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrBoundHostUnschedulable,
			want: fleet.Error{Message: "host a, which alone has snapshot snap-1, is too small: 256 free huge pages needed, 0 of 0 free", Details: map[string]string{
				"host_id": "a", "limit": "0 free huge pages", "usage": "0 free huge pages", "scope": "host a", "reason": "fit",
				"remedy": "let host a hand out at least 256 free huge pages",
			}},
		},
		"pinned to two hosts": {
			spec:  with(func(s *fleet.Spec) { s.HostID, s.PinnedHostID = "a", "b" }),
			hosts: []*fleet.Host{host("a"), host("b")},
			is:    fleet.ErrHostPinUnschedulable,
			want: fleet.Error{Message: "pinned host a is not host b, to which the environment is pinned (gate pin)", Details: map[string]string{
				"host_id": "a", "scope": "host a", "reason": "pin", "remedy": "give one host only, or leave the pin out",
			}},
		},
		"its source's host is gone": {
			spec:  with(func(s *fleet.Spec) { s.PinnedHostID = "z" }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrHostNotFound,
			want: fleet.Error{Message: `host "z", which has what it goes on from, is not registered`, Details: map[string]string{
				"host_id": "z", "remedy": "register it again, under the same id and with the data it had",
			}},
		},
		"pinned to an unknown host": {
			spec:  with(func(s *fleet.Spec) { s.HostID = "z" }),
			hosts: []*fleet.Host{host("a")},
			is:    fleet.ErrHostNotFound, code: fleet.CodeNotFound,
			want: fleet.Error{Message: `host "z", which the environment is pinned to, is not registered`, Details: map[string]string{
				"host_id": "z", "remedy": "`fuse host ls` shows the hosts there are",
			}},
		},
		"a negative size": {
			spec:  with(func(s *fleet.Spec) { s.RamMB = -1 }),
			hosts: []*fleet.Host{host("a")},
			code:  fleet.CodeInvalidArgument,
			want: fleet.Error{Message: "ram_mb cannot be -1", Details: map[string]string{
				"limit": "0 or more", "remedy": "give a positive size, or leave it out for the default",
			}},
		},
	} {
		t.Run(name, tt.run)
	}
}

func (tt refusalCase) run(t *testing.T) {
	if tt.spec.CPUs == 0 {
		tt.spec = small
	}
	if tt.code == "" {
		tt.code = fleet.CodeUnavailable
	}
	p, err := schedule.Place(schedule.Input{Spec: tt.spec, Hosts: tt.hosts, Unreachable: tt.down, Refused: tt.refused})
	var got *fleet.Error
	if !errors.As(err, &got) {
		t.Fatalf("placed on %v with error %v", p.Host, err)
	}
	if tt.is != nil && !errors.Is(err, tt.is) {
		t.Errorf("%v is not %v", err, tt.is)
	}
	if got.Code != tt.code {
		t.Errorf("code %s, want %s", got.Code, tt.code)
	}
	if got.Message != tt.want.Message {
		t.Errorf("message\n got %s\nwant %s", got.Message, tt.want.Message)
	}
	if diff := cmp.Diff(tt.want.Details, got.Details); diff != "" {
		t.Errorf("details (-want +got):\n%s", diff)
	}
}

func TestUnknownPolicyIsRefused(t *testing.T) {
	_, _, err := schedule.Schedule(small, []*fleet.Host{host("a")}, "random")
	if fleet.CodeOf(err) != fleet.CodeInvalidArgument {
		t.Fatalf("got %v", err)
	}
}

// A gate that refuses hides the ones after it, so the order shows in what is
// named.
func TestGatesAreAskedInOrder(t *testing.T) {
	everything := with(func(s *fleet.Spec) {
		s.HostID, s.Region, s.Arch, s.GPUs, s.CPUs = "b", "eu", "arm64", 1, 99
		s.Labels = map[string]string{"k": "v"}
	})
	wrong := host("a", state(fleet.HostCordoned), backend(fleet.BackendFirecracker))
	in := schedule.Input{Spec: everything, Hosts: []*fleet.Host{wrong}, Unreachable: map[string]string{"a": ""}, Refused: map[string]string{"a": ""}}
	for _, step := range []struct {
		gate schedule.Gate
		fix  func()
	}{
		{schedule.GatePin, func() { in.Spec.HostID = "a" }},
		{schedule.GateState, func() { wrong.State = fleet.HostActive }},
		{schedule.GateReachable, func() { in.Unreachable = nil }},
		{schedule.GateAsked, func() { in.Refused = nil }},
		{schedule.GateRegion, func() { wrong.Region = "eu" }},
		{schedule.GateArch, func() { wrong.Capacity.Arch = "arm64" }},
		{schedule.GateGPUBackend, func() { wrong.Backend = fleet.BackendQEMU }},
		{schedule.GateLabels, func() { wrong.Labels = map[string]string{"k": "v"} }},
		{schedule.GateFit, func() { in.Spec.CPUs = 1; wrong.Capacity.GPUs = 1 }},
	} {
		p, err := schedule.Place(in)
		if err == nil || len(p.Refusals) != 1 || p.Refusals[0].Gate != step.gate {
			t.Fatalf("want gate %s, got %+v (%v)", step.gate, p.Refusals, err)
		}
		step.fix()
	}
	if _, err := schedule.Place(in); err != nil {
		t.Fatal(err)
	}
}
