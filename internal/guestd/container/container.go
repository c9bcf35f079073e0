// Package container runs services in images of their own: the image's disk,
// which cannot be written, under an overlay that keeps what the service writes,
// in namespaces of its own. The network is the machine's, as in a pod: services
// reach each other at 127.0.0.1 and by their names.
//
// The agent's own program is the service's first process, by Main. It lays out
// the root, starts the image's program, passes signals on to it, reaps what it
// leaves and ends as it ends, which takes the rest along.
package container

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestd/boot"
	"github.com/fusevm/fuse/internal/guestd/supervise"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/services"
)

const (
	// Verb is the agent's first argument when it is a service's first process.
	Verb = "service"

	self = "/proc/self/exe"
	// overlayWait bounds the wait for the kernel's module, which is loaded once
	// the machine answers.
	overlayWait = 30 * time.Second
	namespaces  = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS
)

// Config of a Runtime.
type Config struct {
	// Images are the disks that the machine has for services.
	Images []guestwire.BootServiceImage
	// Mounts holds images, roots and plans: memory that users do not reach.
	Mounts string
	// Data holds what services write, by service and image; it outlives a reboot.
	Data string
	// Disk finds the device of a disk by its serial.
	Disk func(ctx context.Context, serial string) (string, error)
}

// Runtime makes services with images of their own startable.
type Runtime struct {
	cfg Config

	mu      sync.Mutex
	mounted map[string]bool // by serial
}

// New makes a runtime of a machine.
func New(images []guestwire.BootServiceImage) *Runtime {
	return newRuntime(Config{Images: images, Mounts: "/fuse/services", Data: "/var/lib/fuse/services", Disk: boot.Disk})
}

func newRuntime(cfg Config) *Runtime { return &Runtime{cfg: cfg, mounted: map[string]bool{}} }

// plan is all that a service's first process needs to know.
type plan struct {
	Name    string              `json:"name"`
	Lower   string              `json:"lower"`
	Data    string              `json:"data"`
	Root    string              `json:"root"`
	Image   guestwire.BootImage `json:"image"`
	Command fleet.ExecSpec      `json:"command"`
	Hosts   []string            `json:"hosts"` // names of this machine
	Resolv  string              `json:"resolv"`
}

// Contain makes what is started for a service. names are those of all services.
func (r *Runtime) Contain(ctx context.Context, s services.Service, env map[string]string, names []string) (supervise.Contained, error) {
	img, err := r.find(s.Image)
	if err != nil {
		return supervise.Contained{}, err
	}
	argv := s.Command
	if len(argv) == 0 {
		argv = append(slices.Clone(img.Entrypoint), img.Cmd...)
	}
	if len(argv) == 0 {
		return supervise.Contained{}, fleet.Errorf(fleet.CodeInvalidArgument, "the service has no command, and neither has its image")
	}
	lower, err := r.mount(ctx, img.Serial)
	if err != nil {
		return supervise.Contained{}, fmt.Errorf("its image cannot be mounted: %w", err)
	}
	if err := awaitOverlay(ctx); err != nil {
		return supervise.Contained{}, err
	}
	resolv, _ := os.ReadFile("/etc/resolv.conf") // without one there are no names to look up
	sum := sha256.Sum256([]byte(img.Name))
	p := plan{
		Name: s.Name, Lower: lower, Root: filepath.Join(r.cfg.Mounts, "root-"+s.Name), Image: img.BootImage,
		Data: filepath.Join(r.cfg.Data, s.Name+"@"+hex.EncodeToString(sum[:6])), Hosts: names, Resolv: string(resolv),
		Command: fleet.ExecSpec{Argv: argv, Env: env, Cwd: s.Workdir, User: s.User},
	}
	path, err := r.write(p)
	if err != nil {
		return supervise.Contained{}, err
	}
	shim := func(more ...string) fleet.ExecSpec {
		return fleet.ExecSpec{Argv: append([]string{self, Verb}, more...), Cwd: "/", User: "0:0", Env: map[string]string{"GOMAXPROCS": "1"}}
	}
	return supervise.Contained{
		Command: shim(append([]string{"run", path, "--"}, argv...)...), Namespaces: namespaces,
		Enter: func(pid int, argv []string) fleet.ExecSpec {
			return shim(append([]string{"enter", path, strconv.Itoa(pid), "--"}, argv...)...)
		},
	}, nil
}

// find returns the image that a manifest names: as the host was asked for it,
// or without the digest that was found for it.
func (r *Runtime) find(name string) (guestwire.BootServiceImage, error) {
	for _, i := range r.cfg.Images {
		if i.Name == name || strings.HasPrefix(i.Name, name+"@") {
			return i, nil
		}
	}
	return guestwire.BootServiceImage{}, fleet.Errorf(fleet.CodeInvalidArgument, "this machine was made without the image %.120s", name).
		With(fleet.DetailRemedy, "services' images come with the machine: create it with the manifest that names them")
}

// mount mounts the disk of an image, once.
func (r *Runtime) mount(ctx context.Context, serial string) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	dir := filepath.Join(r.cfg.Mounts, "image-"+serial)
	if r.mounted[serial] {
		return dir, nil
	}
	device, err := r.cfg.Disk(ctx, serial)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := unix.Mount(device, dir, "ext4", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return "", &os.PathError{Op: "mount", Path: device, Err: err}
	}
	r.mounted[serial] = true
	return dir, nil
}

// write keeps the plan where the service's first process reads it.
func (r *Runtime) write(p plan) (string, error) {
	doc, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(r.cfg.Mounts, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(r.cfg.Mounts, p.Name+".json")
	tmp := path + ".new"
	if err := os.WriteFile(tmp, doc, 0o600); err != nil {
		return "", err
	}
	return path, os.Rename(tmp, path)
}

// awaitOverlay waits for the kernel to know overlays.
func awaitOverlay(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(overlayWait); ; {
		known, err := os.ReadFile("/proc/filesystems")
		if err != nil {
			return err
		}
		if strings.Contains(string(known), "\toverlay\n") {
			return nil
		}
		if time.Now().After(end) {
			return fleet.Errorf(fleet.CodeUnimplemented, "the machine's kernel knows no overlays, which services with images of their own need")
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hostsFile names the machine and its services.
func (p plan) hostsFile() string {
	names := append([]string{p.Name}, slices.DeleteFunc(slices.Clone(p.Hosts), func(n string) bool { return n == p.Name })...)
	return "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.0.1\t" + strings.Join(names, " ") + "\n"
}
