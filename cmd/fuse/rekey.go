package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/plane"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
	"github.com/fusevm/fuse/internal/failpoint"
	"github.com/fusevm/fuse/internal/rekey"
	"github.com/fusevm/fuse/internal/secrets"
	"github.com/fusevm/fuse/internal/state"
)

func serverRekeyCmd(streams cli.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use: "rekey", Short: "Seal the state's secrets with another key", Args: cobra.NoArgs,
		Long: "rekey seals every stored secret with another key: a new one, which takes the place of\n" +
			"the file key in the data directory; or the one of TOKEN_ENCRYPTION_KEY, with the one\n" +
			"before in TOKEN_ENCRYPTION_KEY_OLD. Stop the servers of this state first: on a live one\n" +
			"rekey refuses. Interrupted, it goes on where it was when it is run again. Keep the old\n" +
			"key for as long as there are backups from before.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := storeSettings(cmd)
			if err == nil {
				err = hasDatabase(s)
			}
			if err == nil {
				s, err = loadSettings(cmd)
			}
			if err != nil {
				return err
			}
			log := slog.New(logHandler(streams.Err, s, max(s.LogLevel, slog.LevelWarn)))
			return runRekey(cmd.Context(), s, log, func(format string, args ...any) { fmt.Fprintf(streams.Err, format+"\n", args...) })
		},
	}
	storeFlags(cmd, "insecure-no-encryption")
	return cmd
}

func runRekey(ctx context.Context, s config.Server, log *slog.Logger, say func(string, ...any)) (err error) {
	store, err := openOffline(ctx, s, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close(context.WithoutCancel(ctx))) }()
	// Only now: while a server runs its keys stay as they are.
	sealer, finish, err := rekeyRing(s)
	if err != nil {
		return err
	}
	say("sealing with key %s", sealer.KeyID())
	done, err := rekey.Run(ctx, store, sealer, plane.SealedColumns, func(n int) { say("%d secrets sealed", n) })
	if err != nil {
		return err
	}
	if err := failpoint.Hit("rekey.finish"); err != nil {
		return err
	}
	kept, err := finish()
	if err != nil {
		return fmt.Errorf("everything is sealed with the new key, but it is not in its place yet; run this again: %w", err)
	}
	say("done: %d secrets were sealed anew, all have key %s", done, sealer.KeyID())
	if kept != "" {
		say("the key before is kept in %s: backups from before need it", kept)
	}
	return nil
}

// openOffline opens the state of a server that does not run.
func openOffline(ctx context.Context, s config.Server, log *slog.Logger) (*state.Store, error) {
	storage := plane.NewStorage(s, log)
	store, err := state.Open(ctx, state.Config{
		Journal: storage, Lease: storage, Logger: log, Candidate: state.Candidate{Name: fmt.Sprintf("fuse server rekey, pid %d", os.Getpid())},
	})
	if err != nil {
		return nil, fmt.Errorf("the servers of this state have to be stopped first: %w", err)
	}
	return store, nil
}

// rekeyRing finds the keys of a rekey, and what puts them in their places when
// it is done.
func rekeyRing(s config.Server) (*secrets.Sealer, func() (kept string, err error), error) {
	if s.EncryptionKey == "" && !s.NoEncryption {
		return rekey.NextKey(s.DataDir, s.OldKeys)
	}
	sealer, err := plane.OpenSealer(s)
	if err != nil {
		return nil, nil, err
	}
	return sealer.TakingClear(), func() (string, error) { return "", nil }, nil
}
