package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// UnprivilegedUser is the user that runs servers that refuse to run as root. nil means this process' own user.
// It returns an error when this is root and the machine has no such user.
func UnprivilegedUser() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return nil, fmt.Errorf("PostgreSQL does not run as root: %w; add a user named postgres", err)
	}
	uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
	gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
	if err := errors.Join(errUID, errGID); err != nil {
		return nil, fmt.Errorf("user %s: %w", u.Username, err)
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

// Give makes owner the owner of files. With a nil owner they stay this process' own.
// It returns an error when a file cannot change its owner.
func Give(owner *syscall.Credential, paths ...string) error {
	if owner == nil {
		return nil
	}
	for _, path := range paths {
		if err := os.Chown(path, int(owner.Uid), int(owner.Gid)); err != nil {
			return fmt.Errorf("give %s to the server's user: %w", path, err)
		}
	}
	return nil
}
