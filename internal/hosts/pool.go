package hosts

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/provider"
)

// retiredMax bounds the providers kept open for calls that still use them
// after their host was registered anew.
const retiredMax = 4

// pool keeps one open provider per host.
type pool struct {
	mu      sync.Mutex
	entries map[string]*entry // guarded by mu
	closed  bool
}

type entry struct {
	key      [sha256.Size]byte // of what the provider was made from
	provider provider.Provider
	retired  []provider.Provider
}

func newPool() *pool { return &pool{entries: map[string]*entry{}} }

// keyOf identifies a way to reach a host: another key needs another provider.
func keyOf(h fleet.Host) [sha256.Size]byte {
	return sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %x", h.URL, h.CertSHA256, h.Facts.RegistryID, h.Facts.MachineID, h.TokenSealed))
}

// get returns the provider of the host, made by open if there is none yet for
// what the host's row says now. open does no I/O, so it may run locked.
func (p *pool) get(h fleet.Host, open func() (provider.Provider, error)) (provider.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, fleet.Errorf(fleet.CodeUnavailable, "the server is stopping")
	}
	key := keyOf(h)
	e := p.entries[h.ID]
	if e != nil && e.key == key {
		return e.provider, nil
	}
	made, err := open()
	if err != nil {
		return nil, fmt.Errorf("open host %s: %w", h.ID, err)
	}
	if e == nil {
		p.entries[h.ID] = &entry{key: key, provider: made}
		return made, nil
	}
	e.retired = append(e.retired, e.provider)
	e.key, e.provider = key, made
	if len(e.retired) > retiredMax {
		err = e.retired[0].Close()
		e.retired = e.retired[1:]
	}
	return made, err
}

func (e *entry) close() error {
	errs := []error{e.provider.Close()}
	for _, r := range e.retired {
		errs = append(errs, r.Close())
	}
	return errors.Join(errs...)
}

func (p *pool) drop(id string) error {
	p.mu.Lock()
	e := p.entries[id]
	delete(p.entries, id)
	p.mu.Unlock()
	if e == nil {
		return nil
	}
	return e.close()
}

func (p *pool) close() error {
	p.mu.Lock()
	entries := p.entries
	p.entries, p.closed = map[string]*entry{}, true
	p.mu.Unlock()
	var errs []error
	for _, e := range entries {
		errs = append(errs, e.close())
	}
	return errors.Join(errs...)
}
