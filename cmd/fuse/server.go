package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/cmd/fuse/datadir"
	"github.com/fusevm/fuse/cmd/fuse/serving"
	"github.com/fusevm/fuse/internal/cli"
	"github.com/fusevm/fuse/internal/config"
)

func serverCmd(streams cli.Streams) *cobra.Command {
	var image string
	cmd := &cobra.Command{
		Use: "server", Short: "Run the control plane", GroupID: "ops", Args: cobra.NoArgs,
		Long: "server runs the control plane for hosts elsewhere: start 'fuse hostd' on each and\n" +
			"tell of it with 'fuse host register'. Settings are flags, environment variables\n" +
			"and files; docs/reference/settings.md lists them.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			serving.SaveMemory()
			s, err := loadSettings(cmd)
			if err != nil {
				return err
			}
			return runServer(cmd.Context(), s, image, streams.Err)
		},
	}
	registerSettings(cmd)
	cmd.AddCommand(serverRekeyCmd(streams))
	cmd.Flags().StringVar(&image, "image", "minimal", "image that environments boot unless they name one; the hosts must have it")
	return cmd
}

// registerSettings adds the flags of a server.
func registerSettings(cmd *cobra.Command) {
	config.Register(cmd.Flags())
	cmd.Flags().Lookup("data-dir").DefValue = datadir.Default()
}

// loadSettings reads the settings and makes the data directory.
func loadSettings(cmd *cobra.Command) (config.Server, error) {
	s, err := readSettings(cmd, config.OS())
	if err != nil {
		return s, &cli.ExitError{Code: cli.ExitUsage, Err: fmt.Errorf("settings:\n%w", err)}
	}
	d, err := datadir.Open(s.DataDir)
	s.DataDir = string(d)
	return s, err
}

// readSettings reads flags and environment; a data directory that neither
// names is the default one.
func readSettings(cmd *cobra.Command, env config.Environ) (config.Server, error) {
	if dir, _ := env.Lookup("ORCH_DATA_DIR"); dir == "" && !cmd.Flags().Changed("data-dir") {
		if err := cmd.Flags().Set("data-dir", datadir.Default()); err != nil {
			return config.Server{}, err
		}
	}
	return config.Load(cmd.Flags(), env)
}

func readSecretFile(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a secret: %w", err)
	}
	s := strings.TrimSpace(string(raw))
	if s == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return s, nil
}
