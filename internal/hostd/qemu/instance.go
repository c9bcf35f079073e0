package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/bounds"
	"github.com/fusevm/fuse/internal/hostd/driver"
	"github.com/fusevm/fuse/internal/hostd/kept"
	"github.com/fusevm/fuse/internal/hostd/proc"
	"github.com/fusevm/fuse/internal/hostd/qmp"
	"github.com/fusevm/fuse/internal/hostd/vmm/nic"
)

// Causes of an end, as exit records name them.
const (
	causeExited   = "vmm_exited"
	causeRebooted = "host_rebooted"
	causePoweroff = kept.CausePoweroff
)

// instance is a running VM that this process holds.
type instance struct {
	bounds.Machine

	d      *Driver
	vm     driver.VM
	digest string
	proc   *proc.Process
	qmp    *qmp.Client
	guest  *kept.Guest

	ctx    context.Context // ends when the instance is let go
	cancel context.CancelFunc
	alive  context.Context // ends when the process does, too
	died   context.CancelFunc
	wg     sync.WaitGroup
	once   sync.Once

	ended    chan struct{} // the guest has powered off
	finished chan struct{} // and its exit is recorded
	done     chan struct{} // the process has ended

	reset chan struct{} // full once the guest was reset, until it is told its certificate

	crashed atomic.Bool // the guest's kernel said so, since its last reset

	pulse atomic.Pointer[func(qmp.Event)] // hears of stops, while a capture listens

	told time.Time // of onEvent alone: when an event was last logged

	mu       sync.Mutex
	conn     net.Conn // the last one to the guest
	cause    string   // why, if QEMU said so
	exit     fleet.ExitRecord
	removing bool // nobody will ask why
}

var _ driver.Instance = (*instance)(nil)

// attach takes hold of a VM's process: it connects to QMP, checks that it is
// this VM, and watches it from then on. It owns p once it succeeds.
func (d *Driver) attach(ctx context.Context, vm driver.VM, p *proc.Process, socket string, rec guestRecord, dial nic.Dialer) (*instance, error) {
	i := &instance{
		d: d, vm: vm, digest: rec.Digest, proc: p, ended: make(chan struct{}), finished: make(chan struct{}), done: make(chan struct{}),
		reset: make(chan struct{}, 1),
	}
	i.ctx, i.cancel = context.WithCancel(context.Background())
	i.alive, i.died = context.WithCancel(i.ctx)
	// All that an event may ask for is there before the first of them.
	i.guest = kept.New(guestwire.NewClient(func(ctx context.Context) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stop := context.AfterFunc(i.alive, cancel)
		defer stop()
		conn, err := nic.Hedged(ctx, dial)
		if err == nil {
			i.mu.Lock()
			i.conn = conn
			i.mu.Unlock()
		}
		return conn, err
	}, rec.Token), vm.Dir)
	client, err := qmp.Dial(ctx, filepath.Join(vm.Dir, socket), i.onEvent)
	if err != nil {
		i.cancel()
		i.wg.Wait()
		return nil, err
	}
	i.qmp, i.Machine = client, d.bounds(vm, p.PID, client)
	if err := checkName(ctx, i); err != nil {
		i.cancel()
		err = errors.Join(err, client.Close())
		i.wg.Wait()
		return nil, err
	}
	i.wg.Go(i.watch)
	i.wg.Go(i.finish)
	i.wg.Go(i.retell)
	d.keep(i)
	d.tender.Add(vm.Dir)
	return i, nil
}

// checkName asks QEMU who it is.
func checkName(ctx context.Context, i *instance) error {
	var got struct{ Name string }
	if err := i.qmp.Execute(ctx, "query-name", nil, &got); err != nil {
		return err
	}
	if want := i.d.reaper.Prefix + i.vm.UID; got.Name != want {
		return fmt.Errorf("the process at the VM's control socket is %q, not %q", got.Name, want)
	}
	return nil
}

func (i *instance) onEvent(e qmp.Event) {
	switch e.Name {
	case "SHUTDOWN":
		var data struct{ Reason string }
		_ = json.Unmarshal(e.Data, &data) // without a reason it is a poweroff
		i.setCause(data.Reason)
	case "GUEST_PANICKED":
		i.tell(e)
		if !i.crashed.Swap(true) {
			i.wg.Go(func() { i.guest.Panicked(i.alive, i.d.log) })
		}
	case "RESET":
		i.crashed.Store(false)
		i.hangUp()
		i.guestReset()
		i.tell(e)
	case "BLOCK_IO_ERROR":
		i.tell(e)
	case "STOP", "RESUME":
		if watch := i.pulse.Load(); watch != nil {
			(*watch)(e)
		}
	}
}

// hangUp drops the connection to the guest: one that has been reset does not
// know it any more, and would leave its callers waiting.
func (i *instance) hangUp() {
	i.mu.Lock()
	conn := i.conn
	i.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
}

// tell logs an event that a guest can cause, as often as it likes.
func (i *instance) tell(e qmp.Event) {
	if now := time.Now(); now.Sub(i.told) > tellEvery {
		i.told = now
		i.d.log.Warn("event of the guest", "vm_id", i.vm.ID, "uid", i.vm.UID, "event", e.Name, "data", string(e.Data))
	}
}

// tellEvery is how often events that a guest can cause are logged.
const tellEvery = 10 * time.Second

// setCause notes why the guest has ended, once.
func (i *instance) setCause(reason string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.cause != "" {
		return
	}
	switch reason {
	case "host-signal", "host-qmp-quit", "host-error":
		return // the process ends by itself
	default:
		i.cause = causePoweroff
	}
	close(i.ended)
}

// finish ends the process of a guest that has powered off; QEMU was told to
// stay until the reason is known.
func (i *instance) finish() {
	defer close(i.finished)
	select {
	case <-i.ended:
		i.mu.Lock()
		cause := i.cause
		i.mu.Unlock()
		i.recordExit(cause, "")
		if err := i.proc.Kill(); err != nil {
			i.d.log.Error("process of an ended guest not killed", "vm_id", i.vm.ID, "uid", i.vm.UID, "error", err)
		}
	case <-i.done:
	case <-i.ctx.Done():
	}
}

// watch waits for the process to end and says why it did.
func (i *instance) watch() {
	if i.proc.Wait(i.ctx) != nil {
		return // let go, not ended
	}
	i.died()
	how, _ := i.proc.Reap()
	<-i.qmp.Done() // the last events are in
	i.mu.Lock()
	cause := i.cause
	i.mu.Unlock()
	if cause == "" {
		cause = causeExited
	} else {
		<-i.finished
	}
	exit := i.recordExit(cause, how)
	i.mu.Lock()
	i.exit = exit
	i.mu.Unlock()
	close(i.done)
}

// recordExit makes the reason durable, unless the VM is being removed.
func (i *instance) recordExit(cause, how string) fleet.ExitRecord {
	exit := kept.Exit(i.vm, cause, how)
	i.mu.Lock()
	removing := i.removing
	i.mu.Unlock()
	if removing {
		return exit
	}
	exit, err := recordExit(i.vm.Dir, exit)
	if err != nil {
		i.d.log.Warn("exit not recorded", "vm_id", i.vm.ID, "uid", i.vm.UID, "error", err)
	}
	return exit
}

// remove tells the instance that its VM is about to be removed.
func (i *instance) remove() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.removing = true
}

// settled returns once the instance writes nothing any more.
func (i *instance) settled(ctx context.Context) error {
	select {
	case <-i.done:
		i.wg.Wait() // what a reset or a panic began to note ends with the process
	case <-i.ctx.Done():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// Guest returns the channel to the guest agent.
func (i *instance) Guest() driver.Guest { return i.guest }

// ImageDigest is the content that the VM's disk began with.
func (i *instance) ImageDigest() string { return i.digest }

// Done is closed when the VM has stopped.
func (i *instance) Done() <-chan struct{} { return i.done }

// Exit says why the VM has stopped; before that it is empty.
func (i *instance) Exit() fleet.ExitRecord {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.exit
}

// Close lets go of the VM without ending it.
func (i *instance) Close() error {
	var err error
	i.once.Do(func() {
		i.cancel()
		i.d.tender.Remove(i.vm.Dir)
		err = errors.Join(i.guest.Close(), i.qmp.Close())
		i.wg.Wait()
		i.d.letGo(i)
		err = errors.Join(err, i.proc.Close())
	})
	return err
}
