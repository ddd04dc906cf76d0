export const headers = { Authorization: `Bearer ${localStorage.getItem('token')}` };
