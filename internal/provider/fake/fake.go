// Package fake is a host in memory for tests of a control plane: it passes
// the provider suite, works in virtual time, and fails, dawdles and loses
// answers as it is told.
package fake

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/fence"
	"github.com/fusevm/fuse/internal/hostwire"
	"github.com/fusevm/fuse/internal/provider"
	"github.com/fusevm/fuse/internal/uid"
)

// Calls that can be told to fail, to take time or to lose their answer.
const (
	Create  = "create"
	Destroy = "destroy"
	List    = "list"
	Get     = "get"
	Exec    = "exec"
	Upload  = "upload"
	Drain   = "drain"
	Claim   = "claim"
	Purge   = "purge"
)

// Options shape a fake host; the zero value is a big one.
type Options struct {
	// Facts are what the host says of itself; RegistryID is made if empty.
	Facts    fleet.HostFacts
	Capacity fleet.HostCapacity // 1000 VMs with 1 TiB of memory if zero
	Images   []string           // minimal if empty
}

// Host is a fake host. Providers of several fleets may share it.
type Host struct {
	opts Options

	mu       sync.Mutex
	marks    *fence.Marks
	vms      map[string]*vm      // by uid
	ended    map[string]ended    // by uid
	faults   map[string][]*fault // by call, used up in order
	delays   map[string]time.Duration
	complete bool
	reason   string

	artifacts map[string]*artifact // by id
	diskOnly  bool
	discarded map[string]bool
	calls     map[string]int
}

type vm struct {
	req     provider.CreateRequest
	fleetID string
	exit    *fleet.ExitRecord
	made    chan struct{} // closed when the create has its outcome
	err     error
	created provider.Created
	end     context.CancelCauseFunc
	stopped chan struct{} // closed when the VM no longer runs
	files   map[string]fleet.GuestFile
	drains  map[string]fleet.ExecStatus
	paused  bool
	seed    string // id of the snapshot that it was made from
}

type ended struct {
	fleetID, opID string
	err           error // of its create; nil if that succeeded
}

// fault is one thing that happens to one call.
type fault struct {
	err  error // refused with it, before any effect
	lose bool  // done, but the answer is lost
}

// New makes a host that is ready and without VMs.
func New(opts Options) *Host {
	if opts.Facts.RegistryID == "" {
		opts.Facts.RegistryID = uid.New()
	}
	if opts.Facts.Driver == "" {
		opts.Facts.Driver = string(fleet.BackendSim)
	}
	opts.Facts.WireVersion = hostwire.WireVersion
	if opts.Facts.Capabilities == nil {
		opts.Facts.Capabilities = []string{fleet.CapSnapshotDisk, fleet.CapSnapshotLive, fleet.CapFork, fleet.CapPause}
	}
	if opts.Capacity.VMCount == 0 {
		opts.Capacity = fleet.HostCapacity{CPUs: 4000, RamMB: 1 << 20, StorageGB: 1 << 20, VMCount: 1000, Arch: fleet.ArchAMD64}
	}
	if len(opts.Images) == 0 {
		opts.Images = []string{"minimal"}
	}
	return &Host{
		opts: opts, complete: true, marks: fence.NewMarks(func(fence.Mark) func() error { return func() error { return nil } }), vms: map[string]*vm{}, ended: map[string]ended{},
		faults: map[string][]*fault{}, delays: map[string]time.Duration{}, calls: map[string]int{},
		artifacts: map[string]*artifact{}, discarded: map[string]bool{},
	}
}

// Fail makes the next call of a kind be refused with err, without effect.
func (h *Host) Fail(call string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[call] = append(h.faults[call], &fault{err: err})
}

// LoseAnswer makes the next call of a kind take effect and its answer get
// lost.
func (h *Host) LoseAnswer(call string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults[call] = append(h.faults[call], &fault{lose: true})
}

// Latency makes every call of a kind take this long.
func (h *Host) Latency(call string, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.delays[call] = d
}

// SetComplete says whether listings are complete, and why not.
func (h *Host) SetComplete(complete bool, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complete, h.reason = complete, reason
}

// Stop ends a VM as if by itself; false if it does not run.
func (h *Host) Stop(uid, cause string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.vms[uid]
	if v == nil || v.exit != nil || !v.isMade() {
		return false
	}
	v.exit = &fleet.ExitRecord{UID: uid, VMID: v.req.ID, Cause: cause, At: time.Now().UTC()}
	close(v.stopped)
	return true
}

// Vanish makes a VM disappear without a trace; false if it is not there.
func (h *Host) Vanish(uid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.vms[uid]
	if v == nil {
		return false
	}
	h.dropLocked(v, nil)
	return true
}

// UIDs lists the lives on the host, sorted.
func (h *Host) UIDs() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	uids := make([]string, 0, len(h.vms))
	for uid := range h.vms {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

// Files returns what was written into a VM, by path.
func (h *Host) Files(uid string) map[string]fleet.GuestFile {
	h.mu.Lock()
	defer h.mu.Unlock()
	files := map[string]fleet.GuestFile{}
	if v := h.vms[uid]; v != nil {
		for path, f := range v.files {
			files[path] = f
		}
	}
	return files
}

// Calls counts the calls of a kind so far, refused ones included.
func (h *Host) Calls(call string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[call]
}

// Provider returns the host as a fleet reaches it.
func (h *Host) Provider(f provider.Fencer) *Provider { return &Provider{h: h, fencer: f} }

// call spends a call's latency and applies its fault, if one is due, around
// do. What do returns is the host's answer.
func (h *Host) call(ctx context.Context, name string, do func() error) error {
	h.mu.Lock()
	h.calls[name]++
	delay := h.delays[name]
	var due *fault
	if q := h.faults[name]; len(q) > 0 {
		due, h.faults[name] = q[0], q[1:]
	}
	h.mu.Unlock()
	if delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return lost(context.Cause(ctx))
		}
	}
	if ctx.Err() != nil {
		return lost(context.Cause(ctx))
	}
	if due != nil && due.err != nil {
		return due.err
	}
	err := do()
	if due != nil && due.lose {
		return lost(errors.New("the test loses this answer"))
	}
	return err
}

func lost(cause error) error {
	code := fleet.CodeUnavailable
	if errors.Is(cause, context.DeadlineExceeded) {
		code = fleet.CodeDeadlineExceeded
	}
	return fleet.Wrap(code, errors.Join(provider.ErrNoAnswer, cause), "the host did not answer")
}

// admitLocked checks a fence. The fake claims by itself, as the remote
// provider does before its first change of a term.
func (h *Host) admitLocked(fencer provider.Fencer) (provider.Fence, error) {
	f, err := fencer.Fence()
	if err != nil {
		return f, err
	}
	_, err = h.marks.Admit(markFence(f))
	if errors.Is(err, hostwire.ErrUnclaimed) {
		if _, err = h.claimLocked(fencer, f); err == nil {
			_, err = h.marks.Admit(markFence(f))
		}
	}
	return f, err
}

// claimLocked claims as the remote provider does: it shows the proof that the
// host asks for, and the operator's confirmation if there is one.
func (h *Host) claimLocked(fencer provider.Fencer, f provider.Fence) (replaced int64, err error) {
	c := fence.Claim{Fence: markFence(f)}
	err = h.marks.Claim(c, nil)
	var fe *fleet.Error
	prover, can := fencer.(provider.Prover)
	if !can || !errors.As(err, &fe) {
		return 0, err
	}
	term, _ := strconv.ParseInt(fe.Details[hostwire.DetailMarkTerm], 10, 64) // absent: zero, and no proof
	if errors.Is(err, hostwire.ErrNeedProof) {
		proof := prover.Proof(term)
		c.Proof = fence.Proof{Term: term, Token: proof.Token, Revision: proof.Revision}
		err = h.marks.Claim(c, nil)
	}
	if errors.Is(err, fleet.ErrFenced) && prover.Accepted() {
		c.AcceptTerm = term
		return term, h.marks.Claim(c, nil)
	}
	return 0, err
}

func markFence(f provider.Fence) fence.Fence {
	return fence.Fence{
		FleetID: f.FleetID, Term: f.Term, ClaimToken: f.ClaimToken, Fingerprint: f.Fingerprint,
		Revision: f.Revision, Volatile: f.Volatile,
	}
}

func conflict(format string, args ...any) error {
	return fleet.Errorf(fleet.CodeConflict, format, args...)
}

func notFound(id string) error {
	return fleet.Errorf(fleet.CodeNotFound, "%w: this host has no %s", fleet.ErrVMNotFound, id)
}

func (v *vm) isMade() bool {
	select {
	case <-v.made:
		return v.err == nil
	default:
		return false
	}
}

func (v *vm) isMeant(f provider.Fence, ref provider.Ref) error {
	switch {
	case v.fleetID != f.FleetID:
		return fleet.Errorf(fleet.CodeForbidden, "uid %s belongs to another fleet", ref.UID).With(fleet.DetailReason, "foreign")
	case v.req.ID != ref.ID:
		return conflict("uid %s is a life of %s, not of %s", ref.UID, v.req.ID, ref.ID)
	case ref.Generation != 0 && ref.Generation < v.req.Generation:
		return conflict("generation %d of %s is over: the host has %d", ref.Generation, ref.ID, v.req.Generation)
	}
	return nil
}

// dropLocked ends a life for good.
func (h *Host) dropLocked(v *vm, err error) {
	delete(h.vms, v.req.UID)
	h.ended[v.req.UID] = ended{v.fleetID, v.req.OpID, err}
	if v.exit == nil {
		close(v.stopped)
	}
	v.end(errDestroyed)
}

var errDestroyed = errors.New("the environment is being destroyed")

// roomLocked refuses what does not fit.
func (h *Host) roomLocked(s fleet.Spec) error {
	ram := s.RamMB
	for _, v := range h.vms {
		if !v.paused {
			ram += v.req.Spec.RamMB
		}
	}
	limit := h.opts.Capacity
	if len(h.vms) < limit.VMCount && ram <= limit.RamMB {
		return nil
	}
	return fleet.Errorf(fleet.CodeUnavailable, "%w: the host is full", fleet.ErrNoCapacity).
		With(fleet.DetailLimit, fmt.Sprintf("%d VMs, %d MB", limit.VMCount, limit.RamMB)).
		With(fleet.DetailUsage, fmt.Sprintf("%d VMs, %d MB with this one", len(h.vms), ram)).
		With(fleet.DetailRemedy, "destroy environments or ask for less")
}

func (h *Host) validate(req provider.CreateRequest) error {
	bad := func(id string) bool { return id == "" || strings.ContainsAny(id, "/\x00") }
	switch {
	case bad(req.ID), bad(req.UID), req.OpID == "":
		return fleet.Errorf(fleet.CodeInvalidArgument, "id, uid or operation id is not allowed")
	case req.Spec.CPUs < 1, req.Spec.RamMB < 1, req.Spec.StorageGB < 0:
		return fleet.Errorf(fleet.CodeInvalidArgument, "a size is not positive")
	case req.Spec.Image != "" && !slices.Contains(h.opts.Images, req.Spec.Image):
		return fleet.Errorf(fleet.CodeInvalidArgument, "this host has no image %.80q", req.Spec.Image)
	}
	return nil
}
