package plane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hosts"
	"github.com/fusevm/fuse/internal/lifecycle"
	"github.com/fusevm/fuse/internal/playguard/credential"
	"github.com/fusevm/fuse/internal/playguard/githook"
	"github.com/fusevm/fuse/internal/playguard/notify"
	"github.com/fusevm/fuse/internal/playguard/records"
	"github.com/fusevm/fuse/internal/playguard/trick"
	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/rotation"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
	"github.com/fusevm/fuse/internal/webhooks"
)

// SealedColumns are all values that lie sealed in the state.
var SealedColumns = []rekey.Column{
	rekey.VMColumn(lifecycle.SealKindVMToken, func(vm *fleet.VM) *[]byte { return &vm.AuthTokenSealed }),
	rekey.VMColumn(lifecycle.SealKindVMBoot, func(vm *fleet.VM) *[]byte { return &vm.BootSealed }),
	rekey.VMColumn(rotation.SealKindPending, func(vm *fleet.VM) *[]byte { return &vm.PendingSealed }),
	rekey.HostColumn(hosts.SealKindHostToken),
	rekey.DocumentColumn(webhooks.SealKindSecret, webhooks.Hooks, func(h *fleet.Webhook) *[]byte { return &h.SecretSealed }),
	rekey.DocumentColumn(webhooks.SealKindSecret, webhooks.Hooks, func(h *fleet.Webhook) *[]byte { return &h.PreviousSealed }),
	rekey.DocumentColumn(records.SealKindKey, records.Marquees, func(m *records.Marquee) *[]byte { return &m.KeySealed }),
	rekey.DocumentColumn(records.SealKindVersion, records.Entries, func(e *records.Entry) *[]byte { return &e.VersionSealed }),
	rekey.DocumentColumn(records.SealKindVariables, records.Playgrounds, func(p *records.Playground) *[]byte { return &p.Source.VariablesSealed }),
	rekey.DocumentColumn(credential.SealKind, credential.Secrets, func(s *credential.Secret) *[]byte { return &s.Sealed }),
	rekey.DocumentColumn(credential.SealKindSource, credential.Secrets, func(s *credential.Secret) *[]byte { return &s.Source.AuthorizationSealed }),
	rekey.DocumentColumn(credential.SealKindQuery, credential.Secrets, func(s *credential.Secret) *[]byte { return &s.Source.QuerySealed }),
	rekey.DocumentColumn(githook.SealKind, githook.Hooks, func(h *githook.Hook) *[]byte { return &h.SecretSealed }),
	rekey.DocumentColumn(records.SealKindLog, records.Entries, func(e *records.Entry) *[]byte { return &e.LogSealed }),
	rekey.DocumentColumn(notify.SealKindTarget, notify.Routes, func(r *notify.Route) *[]byte { return &r.TargetSealed }),
	rekey.DocumentColumn(notify.SealKindMail, notify.Memories, notify.MailPassword),
	rekey.DocumentColumn(trick.SealKindRequest, trick.Schedules, func(s *trick.Schedule) *[]byte { return &s.RequestSealed }),
}

// OpenSealer finds the keys that seal and open the state: those of the
// environment, else those of the data directory. No key is no state, unless an
// operator insists.
func OpenSealer(s config.Server) (*secrets.Sealer, error) {
	keys, err := keyRing(s)
	switch {
	case err != nil:
		return nil, fmt.Errorf("encryption key: %w", err)
	case s.NoEncryption:
		return secrets.NewClear(keys...), nil
	}
	return secrets.NewSealer(keys[0], keys[1:]...), nil
}

// keyRing lists the keys, the current one first. With NoEncryption there may be
// none, and all that there are only open.
func keyRing(s config.Server) (keys []secrets.Key, err error) {
	dir := datadir.Dir(s.DataDir)
	switch {
	case s.EncryptionKey != "":
		k, err := secrets.ParseKey(s.EncryptionKey)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	case !s.NoEncryption || exists(dir.Path(rekey.KeyFile)):
		k, err := fileKey(s)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	if s.EncryptionKey == "" && exists(dir.Path(rekey.NextKeyFile)) { // a rekey was interrupted
		k, err := secrets.LoadOrCreateKey(dir.Path(rekey.NextKeyFile))
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	for _, old := range s.OldKeys {
		k, err := secrets.ParseKey(old)
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// fileKey reads the key of a data directory, and makes one only for a state of
// this directory that has nothing sealed yet: a new key would make what the old
// one sealed unreadable without a word, and the servers of one database would
// each have their own.
func fileKey(s config.Server) (secrets.Key, error) {
	dir := datadir.Dir(s.DataDir)
	path := dir.Path(rekey.KeyFile)
	if exists(path) {
		return secrets.LoadOrCreateKey(path)
	}
	if s.Store == config.StorePostgres {
		return secrets.Key{}, fleet.Errorf(fleet.CodeUnavailable, "there is none, and a server without one stores no secrets").
			With(fleet.DetailRemedy, "give every server of this database the same one in TOKEN_ENCRYPTION_KEY (openssl rand -hex 32), or as "+path+"; --insecure-no-encryption does without")
	}
	if db, err := os.Stat(dir.Path(DatabaseFile)); err == nil && db.Size() > 0 {
		return secrets.Key{}, fleet.Errorf(fleet.CodeUnavailable, "%s is missing, but the state that it seals is there", path).
			With(fleet.DetailRemedy, "restore the file, or give the key in TOKEN_ENCRYPTION_KEY; without it move "+DatabaseFile+" away and register the hosts again")
	}
	return secrets.LoadOrCreateKey(path)
}

// StandbyKeys names the key of this process for others, and refuses a leader
// who seals with one that this process has not: it would find that out when it
// is to take over, and then nobody leads. Without a key of its own yet (that of
// a data directory is made by who leads) it says nothing.
func StandbyKeys(s config.Server) (id string, admit func(leader state.Candidate) error, err error) {
	if s.Store != config.StorePostgres && s.EncryptionKey == "" {
		return "", nil, nil
	}
	sealer, err := OpenSealer(s)
	if err != nil {
		return "", nil, err
	}
	keys, err := keyRing(s)
	if err != nil {
		return "", nil, fmt.Errorf("encryption key: %w", err)
	}
	known := map[string]bool{"": true, sealer.KeyID(): true}
	for _, k := range keys {
		known[k.ID()] = true
	}
	return sealer.KeyID(), func(leader state.Candidate) error {
		if known[leader.KeyID] {
			return nil
		}
		return fleet.Errorf(fleet.CodeInvalidArgument, "this server cannot stand by for %s: that seals with key %s, and the configured key is %s",
			leader.Name, leader.KeyID, sealer.KeyID()).
			With(fleet.DetailRemedy, "give every server of a state the same TOKEN_ENCRYPTION_KEY")
	}, nil
}

// checkKey refuses a state that was sealed with another key, before anything is
// served, and tells of what a rekey has left to do.
func (p *Plane) checkKey(ctx context.Context, s *secrets.Sealer) error {
	report, err := rekey.Check(ctx, p.Store, s, SealedColumns)
	if err != nil {
		return err
	}
	if n := report.Others(s.KeyID()); n > 0 {
		p.log.Warn("some secrets are sealed with an earlier key; run fuse server rekey", slog.Int("values", n), slog.String("key_id", s.KeyID()))
	}
	return nil
}
