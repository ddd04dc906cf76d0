import react from '@vitejs/plugin-react';
import { defineConfig } from 'vite';

// Vite serves the page and forwards requests to /api to Django.
export default defineConfig({
  plugins: [react()],
  preview: { strictPort: true, proxy: { '/api': process.env.BASE_URL } },
});
