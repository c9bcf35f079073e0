// Package live is the talk with QEMU by which a machine's state of one instant
// gets into a template process that never runs, and from there into others.
// Every stream is a descriptor. docs/design/snapshots.md has the picture.
package live

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Monitor is QEMU's control channel.
type Monitor interface {
	Execute(ctx context.Context, command string, args, result any) error
	ExecuteFile(ctx context.Context, command string, args, result any, file *os.File) error
}

// Pace of asking how far a stream is.
const pollEvery = 2 * time.Millisecond

// maxBandwidth lifts QEMU's limit, in bytes a second.
const maxBandwidth = 8 << 30

type args map[string]any

// capabilities are set all together, so that none is left from another stream.
func capabilities(ctx context.Context, m Monitor, on ...string) error {
	var list []args
	for _, name := range []string{"x-ignore-shared", "background-snapshot"} {
		state := false
		for _, o := range on {
			state = state || o == name
		}
		list = append(list, args{"capability": name, "state": state})
	}
	return m.Execute(ctx, "migrate-set-capabilities", args{"capabilities": list}, nil)
}

// Connect prepares a stream from one process to another.
func Connect(ctx context.Context, from, to Monitor) error {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	a, b := os.NewFile(uintptr(p[0]), "stream"), os.NewFile(uintptr(p[1]), "stream")
	defer a.Close()
	defer b.Close()
	err = errors.Join(
		to.ExecuteFile(ctx, "getfd", args{"fdname": "in"}, nil, b),
		from.ExecuteFile(ctx, "getfd", args{"fdname": "out"}, nil, a),
		from.Execute(ctx, "migrate-set-parameters", args{"max-bandwidth": int64(maxBandwidth)}, nil))
	if err != nil {
		return err
	}
	return to.Execute(ctx, "migrate-incoming", args{"uri": "fd:in"}, nil)
}

// Protect chooses how Send works: in the background, or of a machine that stays
// stopped.
func Protect(ctx context.Context, from Monitor, background bool) error {
	if background {
		return capabilities(ctx, from, "background-snapshot")
	}
	return capabilities(ctx, from)
}

// Send begins the stream of a stopped machine. In the background it runs on by
// itself soon after.
func Send(ctx context.Context, from Monitor) error {
	return from.Execute(ctx, "migrate", args{"uri": "fd:out"}, nil)
}

// Blank sends the state of a running machine nowhere if its last stream did not
// come to its end. QEMU 7.2 believes then that its memory is protected still, and
// each stream of a stopped machine would fail; one in the background puts that
// right. It needs what Protect needs.
func Blank(ctx context.Context, m Monitor) error {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := capabilities(ctx, m, "background-snapshot"); err != nil {
		return err
	}
	if err := m.ExecuteFile(ctx, "getfd", args{"fdname": "out"}, nil, null); err != nil {
		return err
	}
	if err := Send(ctx, m); err != nil {
		return err
	}
	return errors.Join(Await(ctx, m, nil), AwaitStatus(ctx, m, "running"))
}

// BrokeOff says whether the last stream of a machine did not come to its end.
func BrokeOff(ctx context.Context, m Monitor) (bool, error) {
	var s Sent
	err := m.Execute(ctx, "query-migrate", nil, &s)
	return s.Status == "failed" || s.Status == "cancelled", err
}

// Sent is how far a stream is.
type Sent struct {
	Status string `json:"status"`
	Error  string `json:"error-desc"`
	RAM    struct {
		Transferred int64 `json:"transferred"`
		Total       int64 `json:"total"`
	} `json:"ram"`
}

// Await waits until a stream is complete.
func Await(ctx context.Context, m Monitor, tick func(done, total int64)) error {
	return poll(ctx, func() (bool, error) {
		var s Sent
		if err := m.Execute(ctx, "query-migrate", nil, &s); err != nil {
			return false, err
		}
		if tick != nil && s.RAM.Total > 0 {
			tick(min(s.RAM.Transferred, s.RAM.Total), s.RAM.Total)
		}
		switch s.Status {
		case "completed":
			return true, nil
		case "failed", "cancelled":
			return false, fmt.Errorf("QEMU's stream %s: %s", s.Status, s.Error)
		}
		return false, nil
	})
}

// Status is what a machine does.
func Status(ctx context.Context, m Monitor) (string, error) {
	var st struct{ Status string }
	err := m.Execute(ctx, "query-status", nil, &st)
	return st.Status, err
}

// AwaitStatus waits until a machine does one of these.
func AwaitStatus(ctx context.Context, m Monitor, want ...string) error {
	return poll(ctx, func() (bool, error) {
		got, err := Status(ctx, m)
		for _, w := range want {
			if got == w {
				return true, err
			}
		}
		if got == "internal-error" || got == "io-error" {
			return false, fmt.Errorf("the machine is in the state %s", got)
		}
		return false, err
	})
}

func poll(ctx context.Context, done func() (bool, error)) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WriteDevices writes a template's state without its memory, which is shared.
func WriteDevices(ctx context.Context, template Monitor, to *os.File) error {
	if err := capabilities(ctx, template, "x-ignore-shared"); err != nil {
		return err
	}
	if err := template.ExecuteFile(ctx, "getfd", args{"fdname": "state"}, nil, to); err != nil {
		return err
	}
	if err := template.Execute(ctx, "migrate", args{"uri": "fd:state"}, nil); err != nil {
		return err
	}
	return Await(ctx, template, nil)
}

// Resume gives a machine that waits for it what WriteDevices wrote, and lets it
// run.
func Resume(ctx context.Context, m Monitor, devices *os.File) error {
	if err := capabilities(ctx, m, "x-ignore-shared"); err != nil {
		return err
	}
	// Nobody has to learn where the machine is: its network has it as before. To
	// announce itself would cost an emulated guest more than to be renewed.
	if err := m.Execute(ctx, "migrate-set-parameters", args{"announce-rounds": 0}, nil); err != nil {
		return err
	}
	if err := m.ExecuteFile(ctx, "getfd", args{"fdname": "in"}, nil, devices); err != nil {
		return err
	}
	if err := m.Execute(ctx, "migrate-incoming", args{"uri": "fd:in"}, nil); err != nil {
		return err
	}
	if err := AwaitStatus(ctx, m, "paused", "running"); err != nil {
		return err
	}
	return Go(ctx, m)
}

// Go lets a stopped machine run; one that runs already is fine.
func Go(ctx context.Context, m Monitor) error { return m.Execute(ctx, "cont", nil, nil) }

// Recover ends whatever stream of a machine is under way and lets the machine
// run; it says whether it was not running. It is for one whose capture broke off
// at an unknown place. free ends the protection that QEMU may leave behind: it
// comes before anything that waits for the machine's processors.
func Recover(ctx context.Context, m Monitor, free func() error) (stood bool, err error) {
	var s Sent
	if err := m.Execute(ctx, "query-migrate", nil, &s); err != nil {
		return false, err
	}
	switch s.Status {
	case "setup", "active", "device", "cancelling", "pre-switchover":
		stood = true
		if err := m.Execute(ctx, "migrate_cancel", nil, nil); err != nil {
			return stood, err
		}
		err := poll(ctx, func() (bool, error) {
			err := m.Execute(ctx, "query-migrate", nil, &s)
			return s.Status == "cancelled" || s.Status == "failed" || s.Status == "completed", err
		})
		if err != nil {
			return stood, err
		}
	}
	if err := free(); err != nil {
		return stood, err
	}
	st, err := Status(ctx, m)
	if err != nil {
		return stood, err
	}
	switch st {
	case "paused", "postmigrate", "finish-migrate":
		return true, Go(ctx, m)
	}
	return stood, nil
}
