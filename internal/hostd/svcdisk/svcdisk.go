// Package svcdisk gives a VM the images that services of its manifest bring
// along: each is one more disk, which cannot be written, based on a hard link
// in the VM's directory, so that an image is in use while a VM has it.
package svcdisk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/guestwire"
	"github.com/fusevm/fuse/internal/hostd/image"
)

// Files are the names that the links can have in a VM's directory.
func Files() []string {
	out := make([]string, fleet.MaxServiceImages)
	for i := range out {
		out[i] = File(i)
	}
	return out
}

// File is the name of the link to a VM's image of that place.
func File(i int) string { return fmt.Sprintf("service-%d.ext4", i) }

func serial(i int) string { return fmt.Sprintf("fuse-svc-%d", i) }

// Store is where images are: image.Store.
type Store interface {
	Get(name string) (image.Image, error)
	Hold(img image.Image, path string) error
}

// Set is the images of one VM.
type Set struct{ boot []guestwire.BootServiceImage }

// Kept are images that a capture has.
func Kept(boot []guestwire.BootServiceImage) Set { return Set{boot} }

// Find finds the images of a VM, in their order. One that is missing is an
// error that names it.
func Find(s Store, names []string) (Set, error) {
	var set Set
	if len(names) > fleet.MaxServiceImages {
		return set, fleet.Errorf(fleet.CodeInvalidArgument, "%d images of services", len(names)).
			With(fleet.DetailLimit, fmt.Sprint(fleet.MaxServiceImages))
	}
	for i, n := range names {
		img, err := s.Get(n)
		if err != nil {
			return set, fmt.Errorf("image of a service: %w", err)
		}
		set.boot = append(set.boot, guestwire.BootServiceImage{
			Name: n, Serial: serial(i),
			BootImage: guestwire.BootImage{Env: img.Env, Workdir: img.Workdir, User: img.User, Entrypoint: img.Entrypoint, Cmd: img.Cmd},
		})
	}
	return set, nil
}

// Link gives dir the first n images that from has; what it has already it keeps.
func Link(n int, from, dir string) error {
	for i := range n {
		if err := os.Link(filepath.Join(from, File(i)), filepath.Join(dir, File(i))); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("hold the image of a service: %w", err)
		}
	}
	return nil
}

// Attach opens the images' files in a VM's directory. What is not linked there
// yet is: a VM that starts again keeps what it has, whatever became of the store.
func Attach(store Store, dir string, names []string) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			for _, f := range files {
				_ = f.Close()
			}
		}
	}()
	for i, name := range names {
		path := filepath.Join(dir, File(i))
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			if err := hold(store, name, path); err != nil {
				return files, err
			}
			f, err = os.Open(path)
		}
		if err != nil {
			return files, err
		}
		files = append(files, f)
	}
	return files, nil
}

func hold(store Store, name, path string) error {
	img, err := store.Get(name)
	if err == nil {
		err = store.Hold(img, path)
	}
	if err != nil {
		return fmt.Errorf("hold the image of a service: %w", err)
	}
	return nil
}

// firstSet is the first number of QEMU's descriptor sets that is ours.
const firstSet = 50

// Args attach disks to QEMU, which has their files as these descriptors.
func Args(fds []int) []string {
	var args []string
	for i, fd := range fds {
		args = append(args,
			"-add-fd", fmt.Sprintf("fd=%d,set=%d", fd, firstSet+i),
			"-blockdev", fmt.Sprintf("driver=file,node-name=svc%d-file,filename=/dev/fdset/%d,read-only=on", i, firstSet+i),
			"-blockdev", fmt.Sprintf("driver=raw,node-name=svc%d,file=svc%d-file,read-only=on", i, i),
			"-device", fmt.Sprintf("virtio-blk-pci,drive=svc%d,id=svc%d-disk,serial=%s,num-queues=1", i, i, serial(i)),
		)
	}
	return args
}

// Boot is what the guest is told of them.
func (s Set) Boot() []guestwire.BootServiceImage { return s.boot }
