// Package runner is both ends of the work on a marquee: a POSIX shell script
// that looks and acts there, and the calls that start it over SSH. What
// changes something runs detached under an operation id, so that a cut
// connection neither kills nor repeats it, and under the lease's epoch, which
// the host itself holds against older ones.
package runner

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the script
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/decide"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
	"github.com/fusevm/fuse/internal/playguard/sshx"
)

var (
	//go:embed branch.sh
	branchPart []byte
	//go:embed reclaim.sh
	reclaimPart []byte
	//go:embed sweep.sh
	sweepPart []byte
	//go:embed runner.sh
	mainPart []byte
)

// script is what is installed: functions first, and last what calls them.
var script = slices.Concat(branchPart, reclaimPart, sweepPart, mainPart)

// Hash names the script's version.
var Hash = func() string {
	sum := sha256.Sum256(script)
	return hex.EncodeToString(sum[:])
}()

// Exit statuses of the script.
const (
	statusUse         = 64
	statusNotOurs     = 65
	statusNoContainer = 66
	statusTooling     = 69
	statusCannotKeep  = 73
	statusSuperseded  = 75
	statusMissing     = 78 // not installed, or not as it should be
)

// ErrSuperseded marks an operation that the host refused because a newer epoch
// or another operation is at work: an ordinary outcome.
var ErrSuperseded = errors.New("superseded")

// ErrBusy marks an operation that the host refused only because another one is
// at work: it may be asked for again. It is ErrSuperseded too.
var ErrBusy = fmt.Errorf("another operation is at work: %w", ErrSuperseded)

// ErrNotOurs marks a directory on the host that is not this playground's.
var ErrNotOurs = errors.New("not ours")

// Shell runs a command on a host; *sshx.Conn is one.
type Shell interface {
	Run(ctx context.Context, cmd sshx.Command) (sshx.Result, error)
}

// Host is the runner of one installation on one marquee.
type Host struct {
	Layout       model.Layout
	Installation model.InstallationID
}

// LookTimeout bounds a look, by our clock; hostLimit bounds a call in seconds
// on the host, where nobody notices that the caller has gone.
const (
	LookTimeout = 30 * time.Second
	hostLimit   = 20
)

// Observe looks at the host, in one round trip when the script is there.
func (h Host) Observe(ctx context.Context, sh Shell) observe.Trip {
	ctx, cancel := context.WithTimeout(ctx, LookTimeout)
	defer cancel()
	trip := observe.Trip{Nonce: nonce(), From: time.Now()}
	res, err := h.call(ctx, sh, nil, "observe", h.Layout.Root(), string(h.Installation), trip.Nonce)
	trip.To = time.Now()
	trip.Ending, trip.Status, trip.Stdout, trip.Stderr = res.Ending, res.Status, res.Stdout, res.Stderr
	if err != nil {
		trip.Ending = sshx.EndingOf(err)
	}
	return trip
}

func nonce() string {
	var raw [16]byte
	_, _ = rand.Read(raw[:]) // never fails
	return hex.EncodeToString(raw[:])
}

// Request is one operation to start.
type Request struct {
	Op         string
	Epoch      uint64
	Project    model.Project
	Playground model.PlaygroundID
	Verb       decide.Verb
	// Payload is a tar archive of compose.yml, .fuse/owner.json, the files that
	// the compose file uses and, if there is one, docker-config; for the verb
	// that writes files only. A destroy may have ByDaemon.
	Payload []byte
	Limit   time.Duration
}

// ByDaemon is the payload of a destroy that may remove files which belong to
// another user than ours through a container, since the daemon is root.
var ByDaemon = []byte("by daemon\n")

// Start starts an operation and returns once it runs by itself. One that has
// been started under its id already is not started again.
func (h Host) Start(ctx context.Context, sh Shell, r Request) error {
	args := []string{
		"start", h.Layout.Root(), string(h.Installation), strconv.FormatUint(r.Epoch, 10), r.Op,
		r.Project.String(), string(r.Playground), string(r.Verb.Kind()), strconv.Itoa(int(r.Limit / time.Second)),
	}
	res, err := h.call(ctx, sh, r.Payload, append(args, r.Verb.Volumes()...)...)
	return outcome("start "+string(r.Verb.Kind())+" of "+r.Project.String(), res, err)
}

// Progress is how far an operation is.
type Progress struct {
	Known   bool
	Running bool
	Lost    bool // it ended and nobody knows how
	Status  int
	ErrText string // the end of what it wrote to standard error
}

// Poll asks for an operation.
func (h Host) Poll(ctx context.Context, sh Shell, op string) (Progress, error) {
	res, err := h.call(ctx, sh, nil, "poll", h.Layout.Root(), string(h.Installation), op)
	if err := outcome("ask for an operation", res, err); err != nil {
		return Progress{}, err
	}
	first, rest, _ := strings.Cut(string(res.Stdout), "\n")
	rest = strings.ReplaceAll(rest, "\r", "\n") // how git tells its progress
	p := Progress{Known: first != "unknown", ErrText: strings.ToValidUTF8(rest, "?")}
	switch first {
	case "unknown":
	case "running":
		p.Running = true
	case "lost":
		p.Lost = true
	default:
		if p.Status, err = strconv.Atoi(first); err != nil {
			return Progress{}, fmt.Errorf("the runner answers %.40q for an operation", first)
		}
	}
	return p, nil
}

// Cancel tells an operation to end; Poll tells when it has.
func (h Host) Cancel(ctx context.Context, sh Shell, epoch uint64, op string) error {
	res, err := h.call(ctx, sh, nil, "cancel", h.Layout.Root(), string(h.Installation), strconv.FormatUint(epoch, 10), op)
	return outcome("cancel an operation", res, err)
}

// Reap forgets operations that ended more than so many days ago.
func (h Host) Reap(ctx context.Context, sh Shell, days int) error {
	res, err := h.call(ctx, sh, nil, "reap", h.Layout.Root(), string(h.Installation), strconv.Itoa(days))
	return outcome("forget old operations", res, err)
}

// Enroll makes the installation's place on the host and its witness volume.
func (h Host) Enroll(ctx context.Context, sh Shell) error {
	res, err := h.call(ctx, sh, nil, "enroll", h.Layout.Root(), string(h.Installation))
	return outcome("enroll the host", res, err)
}

// Claim tells the host of an epoch, so that from here on no older one starts
// anything. An operation that is at work goes on.
func (h Host) Claim(ctx context.Context, sh Shell, epoch uint64) error {
	res, err := h.call(ctx, sh, nil, "claim", h.Layout.Root(), string(h.Installation), strconv.FormatUint(epoch, 10))
	return outcome("claim the host", res, err)
}

// call runs a verb, and installs the script first where it is missing or is
// another one.
func (h Host) call(ctx context.Context, sh Shell, stdin []byte, args ...string) (sshx.Result, error) {
	line, path, err := h.line(hostLimit, args...)
	if err != nil {
		return sshx.Result{}, err
	}
	for install := true; ; install = false {
		res, err := sh.Run(ctx, sshx.Command{Line: line, Stdin: stdin})
		if err != nil || !install || res.Status != statusMissing || res.Ending != observe.EndedExit {
			return res, err
		}
		if err := h.install(ctx, sh, path); err != nil {
			return sshx.Result{}, err
		}
	}
}

// line is the command line of a verb, and where the script has to be: it runs
// only if it is what we mean. A limit in seconds ends it on the host; 0 is none.
func (h Host) line(limit int, args ...string) (line, path string, err error) {
	if path, err = h.Layout.Path(model.PlaceRunner, Hash); err != nil {
		return "", "", err
	}
	words, err := sshx.Quote(append([]string{path}, args...)...)
	if err != nil {
		return "", "", err
	}
	run := "sh " + words
	if limit > 0 {
		run = fmt.Sprintf("timeout -k 5 %d %s", limit, run)
	}
	line, err = sshx.Quote("sh", "-c", fmt.Sprintf(
		`h=$(sha256sum <%s 2>/dev/null | cut -c1-64); [ "$h" = %s ] || exit %d; exec %s`, path, Hash, statusMissing, run))
	return "exec " + line, path, err
}

// install puts the script into its place. Its name is its hash, so two that do
// this at once write the same.
func (h Host) install(ctx context.Context, sh Shell, path string) error {
	dir := path[:strings.LastIndexByte(path, '/')]
	line, err := sshx.Quote("sh", "-c", fmt.Sprintf(
		`umask 077 && mkdir -p %[1]s && cat >%[1]s/.new-$$ && chmod 0700 %[1]s/.new-$$ && mv %[1]s/.new-$$ %[2]s`, dir, path))
	if err != nil {
		return err
	}
	res, err := sh.Run(ctx, sshx.Command{Line: "exec " + line, Stdin: script})
	return outcome("install the runner", res, err)
}

// outcome turns an exit status of the script into an error.
func outcome(what string, res sshx.Result, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	text := string(bytes.TrimSpace(res.Stderr))
	text = strings.ToValidUTF8(text[:min(len(text), 300)], "?")
	switch res.Status {
	case 0:
		return nil
	case statusSuperseded:
		if _, who, busy := strings.Cut(text, "another operation is at work"); busy {
			return fleet.Errorf(fleet.CodeConflict, "%s: %w%s", what, ErrBusy, who)
		}
		return fleet.Errorf(fleet.CodeConflict, "%s: %s: %w", what, text, ErrSuperseded)
	case statusNotOurs:
		return fleet.Errorf(fleet.CodeConflict, "%s: %s: %w", what, text, ErrNotOurs)
	case statusUse:
		return fleet.Errorf(fleet.CodeInvalidArgument, "%s: %s", what, text)
	case statusTooling, statusCannotKeep:
		return fleet.Errorf(fleet.CodeUnavailable, "%s: %s", what, text)
	}
	return fleet.Errorf(fleet.CodeUnavailable, "%s: exit status %d: %s", what, res.Status, text)
}
